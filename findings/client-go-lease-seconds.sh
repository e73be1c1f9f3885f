#!/usr/bin/env bash
# client-go: with a LeaseDuration of 1.9 s and a RenewDeadline of 1.8 s there are two leaders for most of a second
#
# Run:      k8s.io/client-go 0.37.2 (Go), one object for the lease in memory, one process and so one clock: a leader renews each 50 ms, and
#           then its calls fail, as without a network. A second candidate is there from the start. RenewDeadline is 1.8 s.
# Guess:    the second one leads 1.9 s after the last renewal, when the first one has stopped for 100 ms. It is what LeaseDuration has to be
#           more than RenewDeadline for, and that is checked.
# Seen:     the lease is written to the record as whole seconds, cut, and candidates go by the record: one second for 1.9. The first one
#           leads until 1.8 s. With 3 s it has stopped before.
# Matters:  both are durations in Go, and nothing says that only one of them counts in seconds. Rounding may shorten the time for which the
#           holder leads, and never the time for which the others wait.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules k8s.io/client-go@v0.37.2 k8s.io/api@v0.37.2 k8s.io/apimachinery@v0.37.2
cat >main.go <<'END'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// object is the lease's record, which changes only if it is still as the writer has read it.
type object struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	raw    []byte
}

// candidate is one process' access to the object.
type candidate struct {
	*object
	name        string
	unreachable atomic.Bool
	read        string
}

func (c *candidate) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreachable.Load() {
		return nil, nil, errors.New("unreachable")
	}
	if c.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{}, "service")
	}
	record := *c.record
	c.read = string(c.raw)
	return &record, c.raw, nil
}

func (c *candidate) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return c.Update(ctx, record)
}

func (c *candidate) Update(_ context.Context, record resourcelock.LeaderElectionRecord) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unreachable.Load() || c.read != string(c.raw) {
		return errors.New("unreachable, or changed meanwhile")
	}
	raw, err := json.Marshal(record)
	c.record, c.raw, c.read = &record, raw, string(raw)
	return err
}

func (c *candidate) RecordEvent(string) {}
func (c *candidate) Identity() string   { return c.name }
func (c *candidate) Describe() string   { return c.name }

func main() {
	for _, lease := range []time.Duration{3 * time.Second, 1900 * time.Millisecond} {
		fmt.Println("LeaseDuration:", lease, "two leaders at once:", twoLeaders(lease))
	}
}

// twoLeaders reports whether the second one leads before the first one has stopped.
func twoLeaders(lease time.Duration) bool {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lock := &object{}
	first, second := &candidate{object: lock, name: "first"}, &candidate{object: lock, name: "second"}
	firstLeads, firstStopped, secondLeads := make(chan struct{}), make(chan struct{}), make(chan struct{})
	elect := func(c *candidate, leads func(context.Context), stopped func()) {
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: c, LeaseDuration: lease, RenewDeadline: 1800 * time.Millisecond, RetryPeriod: 50 * time.Millisecond,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: leads, OnStoppedLeading: stopped},
		})
		if err != nil {
			panic(err)
		}
		go elector.Run(ctx)
	}
	elect(first, func(context.Context) { close(firstLeads) }, func() { close(firstStopped) })
	<-firstLeads
	elect(second, func(context.Context) { close(secondLeads) }, func() {})
	time.Sleep(time.Second)
	first.unreachable.Store(true)
	select {
	case <-secondLeads:
		return true
	case <-firstStopped:
		return false
	}
}
END
expect go run . 2>go.log <<'END'
LeaseDuration: 3s two leaders at once: false
LeaseDuration: 1.9s two leaders at once: true
END
