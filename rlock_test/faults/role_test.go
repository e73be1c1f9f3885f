package faults

import (
	"os"
	"testing"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

func runRoleOrTests(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(roles[role](os.Args[1:]))
	}
	redistest.Main(m)
}
