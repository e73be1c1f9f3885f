package rlocktest

import (
	"github.com/go-rlock/rlock/internal/testing/memredis"
	"github.com/go-rlock/rlock/rlocktest/internal/memory"
)

// The server is also that of rlock's own tests in virtual time.
func init() { //nolint:gochecknoinits // as a driver of database/sql
	memredis.Start = func(o memredis.Options) (memredis.Redis, error) {
		s, err := memory.New(o)
		if err != nil {
			return nil, err //nolint:wrapcheck // it says all
		}
		return s, nil
	}
}
