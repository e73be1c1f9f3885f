//go:build !linux

package main

import "time"

// sleepUntil returns at t or a little later.
func sleepUntil(t time.Time) { <-time.After(time.Until(t)) }
