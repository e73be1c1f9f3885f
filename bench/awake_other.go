//go:build !linux

package main

import "errors"

// keepAwake is known for Linux only.
func keepAwake() (stop func(), err error) { return nil, errors.ErrUnsupported }
