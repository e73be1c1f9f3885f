//go:build race

package main

// raceFlags build the binary like the tests.
func raceFlags() []string { return []string{"-race"} }
