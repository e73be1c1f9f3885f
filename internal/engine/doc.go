// Package engine takes locks, passes them on and releases them: a Lock on its way to a hold (attempt.go), the next owner (handoff.go), and
// the unlock (release.go, unlock.go). What a Client has is in package tenure. docs/internals/design.md describes both.
//
// It carries no compatibility promise: package rlock is what users import.
package engine
