package main

import (
	"fmt"
	"runtime"
	"strconv"
	"time"
)

// chainScript is the least that hands a lock from one owner to another, as a Redisson sees it: the field
// of the one is replaced by that of the other, and the expiry is renewed.
const chainScript = `
if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('hset', KEYS[1], ARGV[2], 1)
redis.call('pexpire', KEYS[1], ARGV[3])
return 1`

// runChain is the floor for a contended lock: one goroutine that hands it from owner to owner, one
// call for each acquisition, with nobody to coordinate.
func runChain(j *job) (report, error) {
	rdb, err := dial(j.addr)
	if err != nil {
		return report{}, err
	}
	defer rdb.Close()
	chain, err := loadScript(rdb, chainScript)
	if err != nil {
		return report{}, err
	}
	const owners = 100
	fields := make([]string, owners)
	for i := range fields {
		fields[i] = "00000000-0000-0000-0000-000000000000:" + strconv.Itoa(i)
	}
	if err := rdb.Do(j.ctx, rdb.B().Hset().Key(j.name).FieldValue().FieldValue(fields[0], "1").Build()).Error(); err != nil {
		return report{}, err
	}
	lease, at := millis(defaultLease), 0
	next := func() error {
		to := (at + 1) % owners
		n, err := chain.call(j.ctx, j.name, fields[at], fields[to], lease).AsInt64()
		if err == nil && n != 1 {
			err = fmt.Errorf("owner %d did not hold the lock", at)
		}
		at = to
		return err
	}
	for warmed := time.Now(); time.Since(warmed) < warmupTime/5; {
		if err := next(); err != nil {
			return report{}, err
		}
	}
	if err := j.begin(); err != nil {
		return report{}, err
	}
	var hist histogram
	rep := report{ElapsedNs: j.duration.Nanoseconds()} // who gets it next is no question here
	var mem0, mem1 runtime.MemStats
	runtime.ReadMemStats(&mem0)
	s := j.witness.slot(0)
	for end := time.Now().Add(j.duration); ; {
		before := time.Now()
		if err := next(); err != nil {
			return report{}, err
		}
		v, ok := s.enter(j.id(at))
		if !v.leave() || !ok {
			rep.Violations++
		}
		rep.Sections++
		after := time.Now()
		hist.record(after.Sub(before))
		if after.After(end) {
			break
		}
		rep.Ops++
	}
	runtime.ReadMemStats(&mem1)
	rep.Latency = hist.latency()
	rep.AllocsPerOp = float64(mem1.Mallocs-mem0.Mallocs) / float64(rep.Sections)
	rep.BytesPerOp = float64(mem1.TotalAlloc-mem0.TotalAlloc) / float64(rep.Sections)
	return rep, j.end()
}
