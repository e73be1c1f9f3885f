package main

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// chainScript is the minimal hand-over between owners in Redisson's format: one owner's field replaces the other's, and the expiry is
// renewed.
const chainScript = `
if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[3])
return 1`

// chain hands a lock from owner to owner, with one call per acquisition and no coordination.
type chain struct {
	job    *job
	rdb    rueidis.Client
	script script
	fields []string
	at     int // whose turn it is
	lease  string
	end    time.Time
	hist   histogram
	report report
}

func openChain(j *job) (*chain, error) {
	rdb, err := dial(j.addr)
	if err != nil {
		return nil, err
	}
	loaded, err := loadScript(rdb, chainScript)
	if err != nil {
		rdb.Close()
		return nil, err
	}
	c := &chain{
		job: j, rdb: rdb, script: loaded, fields: make([]string, owners), lease: millis(defaultLease),
		report: report{ElapsedNs: j.duration.Nanoseconds()}, // the order of owners does not matter
	}
	for i := range c.fields {
		c.fields[i] = "00000000-0000-0000-0000-000000000000:" + strconv.Itoa(i)
	}
	first := rdb.B().Hset().Key(j.name).FieldValue().FieldValue(c.fields[0], "1").Build()
	if err := rdb.Do(j.ctx, first).Error(); err != nil {
		rdb.Close()
		return nil, err
	}
	return c, nil
}

const owners = 100

// next hands the lock to the next owner.
func (c *chain) next() error {
	to := (c.at + 1) % owners
	n, err := c.script.call(c.job.ctx, c.job.name, c.fields[c.at], c.fields[to], c.lease).AsInt64()
	if err == nil && n != 1 {
		err = fmt.Errorf("owner %d did not hold the lock", c.at)
	}
	c.at = to
	return err
}

// section hands the lock on and runs the section. It reports whether that was the window's last.
func (c *chain) section() (last bool, err error) {
	before := time.Now()
	if err := c.next(); err != nil {
		return false, err
	}
	locked := time.Now()
	c.hist.record(locked.Sub(before))
	v, ok := c.job.witness.slot(0).enter(c.job.id(c.at), alone)
	if c.job.section > 0 {
		<-time.After(c.job.section)
	}
	if !v.leave() || !ok {
		c.report.Violations++
	}
	c.report.Sections++
	if time.Now().After(c.end) {
		return true, nil
	}
	c.report.Ops++
	return false, nil
}

// measure warms up, then runs sections for the window, through a function that calls section until it was the last.
func (c *chain) measure(sections func() error) (report, error) {
	for warmed := time.Now(); time.Since(warmed) < warmupTime/5; {
		if err := c.next(); err != nil {
			return report{}, err
		}
	}
	if err := c.job.begin(); err != nil {
		return report{}, err
	}
	var mem0, mem1 runtime.MemStats
	runtime.ReadMemStats(&mem0)
	c.end = time.Now().Add(c.job.duration)
	if err := sections(); err != nil {
		return report{}, err
	}
	runtime.ReadMemStats(&mem1)
	c.report.Latency = c.hist.latency()
	c.report.AllocsPerOp = float64(mem1.Mallocs-mem0.Mallocs) / float64(c.report.Sections)
	c.report.BytesPerOp = float64(mem1.TotalAlloc-mem0.TotalAlloc) / float64(c.report.Sections)
	return c.report, c.job.end()
}

// runChain is the floor for a contended lock: one goroutine acts for all owners.
func runChain(j *job) (report, error) {
	c, err := openChain(j)
	if err != nil {
		return report{}, err
	}
	defer c.rdb.Close()
	return c.measure(func() error {
		for {
			if last, err := c.section(); last || err != nil {
				return err
			}
		}
	})
}

// runRelay is the chain with a goroutine per owner, like callers that share a lock. They have used the connections concurrently before, and
// from then on rueidis reads and writes with its own goroutines.
func runRelay(j *job) (report, error) {
	c, err := openChain(j)
	if err != nil {
		return report{}, err
	}
	defer c.rdb.Close()
	var together sync.WaitGroup
	for range owners {
		together.Go(func() {
			for range 100 {
				c.rdb.Do(j.ctx, c.rdb.B().Ping().Build())
			}
		})
	}
	together.Wait()
	return c.measure(func() error {
		var (
			batons [owners]chan struct{}
			wg     sync.WaitGroup
			done   = make(chan struct{})
			failed error
		)
		for i := range batons {
			batons[i] = make(chan struct{}, 1)
		}
		for i := range batons {
			wg.Go(func() { // ends with the last section
				for {
					select {
					case <-batons[i]:
					case <-done:
						return
					}
					last, err := c.section()
					if last || err != nil {
						failed = err
						close(done)
						return
					}
					batons[(i+1)%owners] <- struct{}{}
				}
			})
		}
		batons[0] <- struct{}{}
		wg.Wait()
		return failed
	})
}
