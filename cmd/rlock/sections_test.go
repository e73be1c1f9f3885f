package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// sections are a test process's sections: each holds a lock and wants another. The process takes and reports the first locks at its start.
// Each line of input makes another section wait, and report it.
type sections struct {
	Addr string
	Of   []struct{ Has, Wants string }
}

const sectionsVariable = "RLOCK_TEST_SECTIONS"

// runSections is that process's main. It ends with its stdin, or when killed.
func runSections(text string) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var s sections
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fail(err)
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{s.Addr}})
	if err != nil {
		return fail(err)
	}
	defer rdb.Close()
	c, err := rlock.New(rdb, rlock.Options{
		Deadlock: rlock.Deadlock{After: 100 * time.Millisecond},
		Trace:    &rlock.Trace{Waiting: func(context.Context, rlock.WaitingInfo) { fmt.Println("waits") }},
	})
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	var inside []context.Context
	for _, of := range s.Of {
		ctx, _, err := c.Mutex(of.Has).Lock(context.Background()) // Close ends it
		if err != nil {
			return fail(err)
		}
		inside = append(inside, ctx)
	}
	fmt.Println("ready")
	in := bufio.NewScanner(os.Stdin)
	for i := 0; in.Scan(); i++ {
		go func() { // ends with the Client
			if _, _, err := c.Mutex(s.Of[i].Wants).Lock(inside[i]); !errors.Is(err, rlock.ErrClosed) {
				fmt.Println("ended:", err)
			}
		}()
	}
	return 0
}
