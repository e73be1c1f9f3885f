// Package engine takes, keeps and releases locks: a Lock on its way to a hold, holds and their levels, tenures in Redis, and how they
// pass from one to the next. docs/design.md describes it. It knows handles, options and errors of users by what it is given: see [Options].
//
// It carries no compatibility promise: package rlock is what users import.
package engine
