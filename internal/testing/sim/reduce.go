package sim

import (
	"slices"
	"time"
)

// Reduce looks for a smaller world that fails as well: fewer processes, faults, goroutines, less time. It runs each
// candidate up to tries times, since the seed does not decide the order of goroutines. It returns the last failure
// seen, possibly the given one, and begins no candidate after the time is up.
func Reduce(failed *Result, tries int, within time.Duration, run func(*Plan) *Result) *Result {
	until := time.Now().Add(within)
	fails := func(p *Plan) bool {
		for range tries {
			if time.Now().After(until) {
				return false
			}
			if r := run(p); len(r.Violations) > 0 {
				failed = r
				return true
			}
		}
		return false
	}
	if v := failed.Violations[0]; v.At > 0 && v.At < failed.Plan.Time {
		p := *failed.Plan
		p.Time = v.At + tick
		p.Faults = slices.DeleteFunc(slices.Clone(p.Faults), func(f Fault) bool { return f.At > p.Time })
		fails(&p)
	}
	for smaller := true; smaller; {
		smaller = halve(failed.Plan.Processes, func(left []Process) bool { return fails(failed.Plan.withProcesses(left)) }) ||
			halve(failed.Plan.Faults, func(left []Fault) bool {
				p := *failed.Plan
				p.Faults = left
				return fails(&p)
			}) || failed.Plan.hasMoreWorkers() && fails(failed.Plan.withOneWorkerEach())
	}
	return failed
}

// halve tries to leave out a part, the larger ones first.
func halve[T any](all []T, try func([]T) bool) bool {
	for size := len(all) / 2; size > 0; size /= 2 {
		for at := 0; at+size <= len(all); at += size {
			if try(slices.Delete(slices.Clone(all), at, at+size)) {
				return true
			}
		}
	}
	return false
}

// withProcesses returns the plan with these of its processes only, and without faults of the others.
func (p *Plan) withProcesses(left []Process) *Plan {
	q := *p
	q.Processes = left
	if len(left) == 0 {
		return &q
	}
	at := make(map[int]int) // where a process is now
	for i, one := range p.Processes {
		at[i] = slices.IndexFunc(left, func(other Process) bool { return one.Workers[0].Seed == other.Workers[0].Seed })
	}
	q.Faults = nil
	for _, f := range p.Faults {
		if f.Process >= 0 {
			if f.Process = at[f.Process]; f.Process < 0 {
				continue
			}
		}
		q.Faults = append(q.Faults, f)
	}
	return &q
}

func (p *Plan) hasMoreWorkers() bool {
	return slices.ContainsFunc(p.Processes, func(one Process) bool { return len(one.Workers) > 1 })
}

func (p *Plan) withOneWorkerEach() *Plan {
	q := *p
	q.Processes = slices.Clone(p.Processes)
	for i := range q.Processes {
		q.Processes[i].Workers = q.Processes[i].Workers[:1]
	}
	return &q
}
