// Package rlockgocron runs the jobs of gocron (github.com/go-co-op/gocron/v2) in one of many processes: with a [Locker] each run in any one
// of them, with an [Elector] all runs in the leader. docs/adapters.md has what gocron itself does with them.
package rlockgocron

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/go-rlock/rlock/rlock"
)

// Locker is a gocron.Locker. A run holds the lock that is named as its job; the same run elsewhere is skipped, with an error for which
// [rlock.IsBusy] is true. The lock is renewed while the job runs, and freed after it, at a Shutdown, too.
type Locker struct {
	client  *rlock.Client
	options []rlock.Option

	mu    sync.Mutex        // guards the following and the states of its runs; a hold's are taken under it
	taken map[string][]*run // whose hold no task has yet, by the name of their job; more than one if all but one are lost
}

// run is one for which gocron has a lock. gocron does not tell a task which run it belongs to, so the next run's task may get its hold, which
// then lasts until both have ended.
type run struct {
	hold *rlock.Hold
	task bool // a task has the hold
	over bool // gocron has unlocked it meanwhile
}

// NewLocker returns a Locker. The lock stays taken for apart, however short the job is: by so much may a tick come later in one process than
// in another. It must be shorter than the time between two ticks. The options are for each lock, as [rlock.WithWatchdog].
func NewLocker(client *rlock.Client, apart time.Duration, options ...rlock.Option) *Locker {
	return &Locker{
		client: client, options: append([]rlock.Option{rlock.WithMinHold(apart)}, options...), taken: make(map[string][]*run),
	}
}

// Lock makes one attempt: one that waited would stop the schedule of the job, and run it again.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	hold, err := rlock.TryAcquire(ctx, l.client.Mutex(name, l.options...), 0)
	if err != nil {
		return nil, err
	}
	r := &run{hold: hold}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.taken[name] = append(l.taken[name], r)
	return unlock(func() error {
		if l.ends(name, r) {
			return hold.Unlock()
		}
		return nil
	}), nil
}

// ends reports whether the hold of a run that is over is to be unlocked now; otherwise the task that has it does that.
func (l *Locker) ends(name string, r *run) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.taken[name], r); i >= 0 { // no task has begun
		l.take(name, i)
	}
	r.over = true
	return !r.task
}

// begins gives a hold of that name to a task, one that lasts if there is any; nil if there is none at all.
func (l *Locker) begins(name string) *run {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.taken[name]
	if len(all) == 0 {
		return nil
	}
	r := l.take(name, max(0, slices.IndexFunc(all, func(r *run) bool { return !isOver(r.hold.Context()) })))
	r.task = true
	return r
}

// take takes a run out of the list. mu is held.
func (l *Locker) take(name string, i int) *run {
	r := l.taken[name][i]
	if l.taken[name] = slices.Delete(l.taken[name], i, i+1); len(l.taken[name]) == 0 {
		delete(l.taken, name)
	}
	return r
}

// leaves ends the hold of a task if its run is over already.
func (l *Locker) leaves(r *run) error {
	l.mu.Lock()
	r.task = false
	over := r.over
	l.mu.Unlock()
	if !over {
		return nil
	}
	return r.hold.Unlock()
}

// unlock is a gocron.Lock. It does without its ctx, which is done at a Shutdown.
type unlock func() error

func (u unlock) Unlock(context.Context) error { return u() }

// NewJob adds a job of that name to s, with this Locker, and fn as its Task. Other jobs of s need no lock.
func (l *Locker) NewJob(s gocron.Scheduler, at gocron.JobDefinition, name string, fn func(context.Context) error, o ...gocron.JobOption) (gocron.Job, error) {
	return s.NewJob(at, l.Task(name, fn), slices.Concat(o, []gocron.JobOption{
		gocron.WithName(name), gocron.WithDistributedJobLocker(l), gocron.WithDisabledDistributedJobLocker(false),
	})...)
}

// Task is for a job with that name (gocron.WithName) that NewJob does not add. The ctx of fn carries the hold. It ends when gocron stops the
// job, and when the lock is lost: then another process may run the job, and the task's error is [rlock.ErrLost], too, whatever fn returned. If it
// was lost before, fn does not run, or runs in place of the next run of this process, under its lock.
func (l *Locker) Task(name string, fn func(ctx context.Context) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		r := l.begins(name)
		if r == nil {
			return fmt.Errorf("rlockgocron: a run of the task %q has no lock (give its job gocron.WithName(%q), and the Locker)", name, name)
		}
		defer func() { _ = l.leaves(r) }() // as gocron drops the error of an Unlock
		section := r.hold.Context()
		if isOver(section) {
			return fmt.Errorf("rlockgocron: the lock was lost before the task %q began: %w", name, cmp.Or(context.Cause(section), rlock.ErrLost))
		}
		return under(ctx, section, fn)
	})
}

// isOver reports whether a section has ended, or has no lease any more, as after a pause that was longer.
func isOver(section context.Context) bool {
	until, ok := rlock.TrustedUntil(section)
	return section.Err() != nil || ok && !time.Now().Before(until)
}

// under runs fn until job or section ends, with what the two carry.
func under(job, section context.Context, fn func(ctx context.Context) error) error {
	ctx, cancel := context.WithCancelCause(both{section, job})
	defer cancel(nil)
	defer context.AfterFunc(job, func() { cancel(context.Cause(job)) })()
	err := fn(ctx)
	if lost := context.Cause(section); errors.Is(lost, rlock.ErrLost) && !errors.Is(err, lost) {
		err = errors.Join(lost, err)
	}
	return err
}

// both is a section's ctx with the values of a job's.
type both struct {
	context.Context
	job context.Context //nolint:containedctx // it is a ctx, too
}

// Value looks into the section's first, which has the hold.
func (b both) Value(key any) any {
	if v := b.Context.Value(key); v != nil {
		return v
	}
	return b.job.Value(key)
}

// ErrNotLeader means that another process leads, or none.
var ErrNotLeader = errors.New("rlockgocron: not the leader")

// Elector is a gocron.Elector: the process that holds its lock starts all jobs.
type Elector struct {
	lock rlock.Locker
	term atomic.Pointer[context.Context] // the last one; nil: there was none
}

// NewElector returns an Elector whose leader holds the lock, of any kind.
func NewElector(lock rlock.Locker) *Elector { return &Elector{lock: lock} }

// Run is [rlock.Lead]: it leads, again and again, until ctx is done or the Client is closed. Call it once, on a goroutine of its own. At
// the end of a process, shut the scheduler down, which waits for its jobs, then cancel ctx and wait for Run: another process leads at once.
func (e *Elector) Run(ctx context.Context, options ...rlock.LeadOption) error {
	return rlock.Lead(ctx, e.lock, func(ctx context.Context) error {
		e.term.Store(&ctx)
		<-ctx.Done()
		return ctx.Err()
	}, options...)
}

// leads returns the ctx of the term, or nil if this process does not lead.
func (e *Elector) leads() context.Context {
	if term := e.term.Load(); term != nil && !isOver(*term) {
		return *term
	}
	return nil
}

// IsLeader looks at the end of the lease, so that a leader who was paused beyond it starts nothing.
func (e *Elector) IsLeader(context.Context) error {
	if e.leads() == nil {
		return ErrNotLeader
	}
	return nil
}

// Task is a task whose ctx ends with the leadership, too: jobs that run when it is lost go on otherwise. It fails with [ErrNotLeader], and fn
// does not run, if the leadership has ended since gocron asked for it.
func (e *Elector) Task(fn func(ctx context.Context) error) gocron.Task {
	return gocron.NewTask(func(ctx context.Context) error {
		if term := e.leads(); term != nil {
			return under(ctx, term, fn)
		}
		return ErrNotLeader
	})
}
