//go:build !linux

package main

import "errors"

// keepAwake does nothing: it is implemented for Linux only.
func keepAwake() (stop func(), err error) { return nil, errors.ErrUnsupported }
