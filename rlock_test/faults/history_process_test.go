package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

// histReturn is how long a call may take to return after the nemesis has stopped: the time for which it
// tries, plus its own wait.
const histReturn = 30 * time.Second

// historyRole is a process of workers. The first line on stdin starts them; the second stops them, and makes it
// report. It lives until stdin ends, so only its calls, not its exit, can leave anything in Redis.
func historyRole(args []string) int {
	var plan histPlan
	if err := json.Unmarshal([]byte(args[0]), &plan); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	rdb, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{plan.Addr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer rdb.Close()
	log := newHistLog()
	client, err := rlock.New(histRedis{rdb, log, plan.Sabotage}, plan.options())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	crew := newHistCrew(plan, log, client)
	in := bufio.NewReader(os.Stdin)
	heard := func() bool { _, err := in.ReadString('\n'); return err == nil }
	_, _ = os.Stdout.WriteString("ready\n")
	if !heard() {
		return 1
	}
	crew.start()
	if !heard() {
		return 1
	}
	report := crew.end()
	client.Close()
	text, err := json.Marshal(report)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_, _ = os.Stdout.Write(append(text, '\n'))
	_, _ = io.Copy(io.Discard, in)
	return 0
}

// end stops the workers, and requires that all callers return.
func (c *histCrew) end() histReport {
	close(c.stop)
	c.log.mu.Lock()
	c.log.ending = true
	c.log.mu.Unlock()
	done := make(chan struct{})
	go func() { // ends with the workers
		defer close(done)
		c.wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(histReturn):
		c.wrong(fmt.Errorf("%d of %d callers did not return", int64(c.plan.Workers)-c.returned.Load(), c.plan.Workers))
	}
	return c.report()
}
