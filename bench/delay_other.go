//go:build !linux

package main

import "time"

// alarm wakes one goroutine at given times.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

// until returns at t or a little later.
func (a *alarm) until(t time.Time) error {
	<-time.After(time.Until(t))
	return nil
}

func (a *alarm) close() {}
