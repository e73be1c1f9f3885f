//go:build !race

package main

// raceFlags build the binary under test the way that the tests are built.
func raceFlags() []string { return nil }
