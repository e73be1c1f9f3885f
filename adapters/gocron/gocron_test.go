package rlockgocron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	rlockgocron "github.com/go-rlock/rlock/adapters/gocron"
	"github.com/go-rlock/rlock/internal/testing/enginetest"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	watchdog = 4 * time.Second // longer than a busy machine stalls a process
	tick     = 4 * time.Second // so is half of it, by which ticks are told apart
	apart    = 2400 * time.Millisecond
	soon     = 20 * time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv("ROLE") != "" {
		process()
		return
	}
	redistest.MainWithExamples(m)
}

// process is one of several that schedule the same job. It prints what happens to a run behind its name.
func process() {
	name, began := os.Getenv("NAME"), envTime("BEGINS")
	say := func(what string, more ...any) { _, _ = fmt.Fprintln(os.Stdout, append([]any{name, what}, more...)...) }
	lease, err := time.ParseDuration(os.Getenv("WATCHDOG"))
	check(err)
	client, err := rlock.Open("redis://"+os.Getenv("REDIS"), rlock.Options{WatchdogTimeout: lease})
	check(err)
	defer client.Close()
	takes, err := time.ParseDuration(os.Getenv("TAKES"))
	check(err)
	job := func(ctx context.Context) error {
		say("runs", strconv.Itoa(int(time.Since(began).Round(tick)/tick)))
		select {
		case <-time.After(takes):
			say("done")
			return nil
		case <-ctx.Done():
			say("stops", errors.Is(context.Cause(ctx), rlock.ErrLost))
			return ctx.Err()
		}
	}

	var task gocron.Task // of an elector
	var locker *rlockgocron.Locker
	var ofScheduler []gocron.SchedulerOption
	led := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	switch os.Getenv("ROLE") {
	case "locker":
		locker = rlockgocron.NewLocker(client, apart)
		led <- nil
	case "elector":
		elector := rlockgocron.NewElector(client.Mutex("scheduler"))
		task, ofScheduler = elector.Task(job), append(ofScheduler, gocron.WithDistributedElector(elector))
		go func() { led <- elector.Run(ctx) }() // ends with ctx
	}
	scheduler, err := gocron.NewScheduler(append(ofScheduler, gocron.WithGlobalJobOptions(gocron.WithEventListeners(
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { say("failed", err) }),
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) {
			if !rlock.IsBusy(err) {
				say("no lock", err)
			}
		}),
	)))...)
	check(err)
	shift, err := time.ParseDuration(os.Getenv("SHIFT"))
	check(err)
	ticks, starts := gocron.DurationJob(tick), gocron.WithStartAt(gocron.WithStartDateTimePast(began.Add(shift)))
	if locker != nil {
		_, err = locker.NewJob(scheduler, ticks, "report", job, starts)
	} else {
		_, err = scheduler.NewJob(ticks, task, starts)
	}
	check(err)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, os.Interrupt)
	scheduler.Start()
	say("began")
	<-ended
	check(scheduler.Shutdown())
	cancel()
	if err := <-led; err != nil && !errors.Is(err, context.Canceled) {
		check(err)
	}
	check(client.Shutdown(context.Background()))
	say("ended")
}

func envTime(name string) time.Time {
	n, err := strconv.ParseInt(os.Getenv(name), 10, 64)
	check(err)
	return time.UnixMilli(n)
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// fleet is three processes with one job, by name. Their ticks are 100 ms apart.
type fleet struct {
	*redistest.Self
	t         *testing.T
	redis     *redistest.Server
	processes map[string]*redistest.SelfProcess
}

func newFleet(t *testing.T, role string, takes, watchdog time.Duration, redis ...string) *fleet {
	t.Helper()
	t.Parallel()
	f := &fleet{redistest.NewSelf(t), t, redistest.Start(t, redis...), make(map[string]*redistest.SelfProcess)}
	begins := time.Now().Add(time.Second).UnixMilli() // or earlier than a slow process starts
	for i, name := range []string{"a", "b", "c"} {
		f.processes[name] = f.Start("ROLE="+role, "NAME="+name, "REDIS="+f.redis.Addr(), "TAKES="+takes.String(), "WATCHDOG="+watchdog.String(),
			fmt.Sprint("BEGINS=", begins), fmt.Sprint("SHIFT=", i*100, "ms"))
	}
	return f
}

// finds skips to a line that says so, and returns its process and the rest.
func (f *fleet) finds(what string) (name, rest string) {
	f.t.Helper()
	name, rest, _ = strings.Cut(f.Find(" "+what), " "+what)
	return name, strings.TrimSpace(rest)
}

// findsOf is finds for one process, or for all others.
func (f *fleet) findsOf(who string, isIt bool, what string) (name, rest string) {
	f.t.Helper()
	for {
		if name, rest = f.finds(what); (name == who) == isIt {
			return name, rest
		}
	}
}

// alone reads on until a process says so, and requires that no other process runs the job before.
func (f *fleet) alone(who, until string) {
	f.t.Helper()
	for {
		name, what, _ := strings.Cut(f.Line(), " ")
		if name != who {
			require.False(f.t, strings.HasPrefix(what, "runs"), "%s runs beside %s", name, who)
		} else if strings.HasPrefix(what, until) {
			return
		}
	}
}

// A tick that comes at different times runs once, and all ticks run.
func TestTurns(t *testing.T) {
	f := newFleet(t, "locker", 0, watchdog)
	for next := 0; next < 6; {
		_, at := f.finds("runs")
		n, err := strconv.Atoi(at)
		require.NoError(t, err)
		if next == 0 {
			next = n // the machine may have been slow to start them
		}
		require.Equal(t, next, n)
		next++
	}
}

// A job that takes longer than any lease runs once at a time. If its process is killed, another one runs it within the watchdog time.
func TestKill(t *testing.T) {
	f := newFleet(t, "locker", 3*watchdog, watchdog)
	first, _ := f.finds("runs")
	f.alone(first, "done")
	next, _ := f.finds("runs")
	f.processes[next].Kill()
	_, _ = f.findsOf(next, false, "runs")
}

// A process that is stopped loses the lock, and another one goes on. When it continues, its job learns of that.
func TestPause(t *testing.T) {
	f := newFleet(t, "locker", 3*watchdog, watchdog)
	first, _ := f.finds("runs")
	f.processes[first].Pause()
	_, _ = f.findsOf(first, false, "runs")
	f.processes[first].Resume()
	_, lost := f.findsOf(first, true, "stops")
	require.Equal(t, "true", lost)
	_, err := f.findsOf(first, true, "failed")
	require.Contains(t, err, "lost")
}

// restarted returns a fleet whose Redis was killed while that process ran the job, and is there again.
func restarted(t *testing.T, role string, takes, lease time.Duration, redis ...string) (f *fleet, runs string) {
	t.Helper()
	f = newFleet(t, role, takes, lease, redis...)
	runs, _ = f.finds("runs")
	f.redis.Kill()
	f.redis.Restart()
	return f, runs
}

// A restart of Redis with its data is not noticed; without it the lock is lost, and the job learns of that.
func TestRestart(t *testing.T) {
	t.Parallel()
	t.Run("with its data", func(t *testing.T) {
		f, first := restarted(t, "locker", 3*watchdog, 10*watchdog, "--appendonly", "yes", "--appendfsync", "always")
		f.alone(first, "done")
	})
	t.Run("without", func(t *testing.T) {
		f, first := restarted(t, "locker", 10*watchdog, watchdog)
		_, lost := f.findsOf(first, true, "stops")
		require.Equal(t, "true", lost)
	})
}

// A scheduler that is shut down stops its job, and frees the lock although gocron's ctx is done.
func TestShutdown(t *testing.T) {
	f := newFleet(t, "locker", time.Minute, time.Minute)
	first, _ := f.finds("runs")
	asked := time.Now()
	f.processes[first].Terminate()
	_, lost := f.findsOf(first, true, "stops")
	require.Equal(t, "false", lost)
	_, _ = f.findsOf(first, false, "runs")
	require.Less(t, time.Since(asked), time.Minute/3, "not by the end of the lease")
	require.Zero(t, f.processes[first].Wait())
}

// The leader runs all ticks. If it is killed, another process leads within the watchdog time.
func TestElector(t *testing.T) {
	f := newFleet(t, "elector", 0, watchdog)
	leader, _ := f.finds("runs")
	for range 3 {
		name, _ := f.finds("runs")
		require.Equal(t, leader, name)
	}
	f.processes[leader].Kill()
	next, _ := f.findsOf(leader, false, "runs")
	f.processes[next].Terminate()
	require.Zero(t, f.processes[next].Wait())
	last, _ := f.findsOf(next, false, "runs")
	require.NotEqual(t, leader, last)
}

// A leader that was stopped beyond its lease starts nothing when it goes on, and the job that it ran learns of it.
func TestElectorPause(t *testing.T) {
	f := newFleet(t, "elector", 3*watchdog, watchdog)
	leader, _ := f.finds("runs")
	f.processes[leader].Pause()
	next, _ := f.findsOf(leader, false, "runs")
	f.processes[leader].Resume()
	for stopped := false; ; {
		name, what, _ := strings.Cut(f.Line(), " ")
		if name == leader {
			require.False(t, strings.HasPrefix(what, "runs"), "it does not lead")
			stopped = stopped || strings.HasPrefix(what, "stops true")
		} else if name == next && what == "done" && stopped {
			break
		}
	}
}

// A restart of Redis with its data changes nothing for the leader. Without it the leader's job learns of the loss, and the next leader runs
// the ticks.
func TestElectorRestart(t *testing.T) {
	t.Parallel()
	t.Run("with its data", func(t *testing.T) {
		f, leader := restarted(t, "elector", 3*watchdog, 10*watchdog, "--appendonly", "yes", "--appendfsync", "always")
		f.alone(leader, "done")
		f.alone(leader, "done")
	})
	t.Run("without", func(t *testing.T) {
		f, leader := restarted(t, "elector", 10*watchdog, watchdog)
		_, lost := f.findsOf(leader, true, "stops")
		require.Equal(t, "true", lost)
		_, _ = f.finds("runs")
	})
}

// newClient returns one whose runs are not skipped because the machine stands still for a second.
func newClient(t *testing.T, s *redistest.Server, o rlock.Options) *rlock.Client {
	t.Helper()
	client, err := rlock.New(s.Client(t), o)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	enginetest.Patient(client)
	return client
}

// NewJob's jobs need the lock, whatever else their options say, and the other jobs of the scheduler do not.
func TestNewJob(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := newClient(t, s, rlock.Options{})
	_, unlock, err := client.Mutex("x").Lock(t.Context())
	require.NoError(t, err)
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	scheduler, err := gocron.NewScheduler()
	require.NoError(t, err)
	refused, ran := make(chan error, 100), make(chan string, 100)
	says := func(what string) func(context.Context) error {
		return func(context.Context) error {
			ran <- what
			return nil
		}
	}
	ticks := gocron.DurationJob(100 * time.Millisecond)
	job, err := locker.NewJob(scheduler, ticks, "x", says("locked"), gocron.WithName("y"), gocron.WithTags("tag"), gocron.WithDisabledDistributedJobLocker(true),
		gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err })))
	require.NoError(t, err)
	require.Equal(t, "x", job.Name())
	require.Equal(t, []string{"tag"}, job.Tags())
	_, err = scheduler.NewJob(ticks, gocron.NewTask(says("free")), gocron.WithName("x"))
	require.NoError(t, err)
	scheduler.Start()
	require.True(t, rlock.IsBusy(redistest.Within(t, soon, refused, "it is refused")))
	require.Equal(t, "free", redistest.Within(t, soon, ran, "the other job runs"))
	require.NoError(t, unlock())
	redistest.Eventually(t, soon, func() bool { return redistest.Within(t, soon, ran, "jobs run") == "locked" }, "it runs")
	require.NoError(t, scheduler.Shutdown())
}

// A job whose lock is lost in the middle ends, and the next tick runs in any process.
func TestLostLock(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client := newClient(t, s, rlock.Options{WatchdogTimeout: watchdog})
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	failed := make(chan error, 10)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithGlobalJobOptions(gocron.WithEventListeners(
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err }))))
	require.NoError(t, err)
	ran := make(chan error, 10)
	once := gocron.OneTimeJob(gocron.OneTimeJobStartImmediately())
	mine := errors.New("mine")
	_, err = scheduler.NewJob(once, locker.Task("\x00 any bytes", func(ctx context.Context) error {
		_, held := rlock.TrustedUntil(ctx)
		require.True(t, held)
		forced, err := client.Mutex("\x00 any bytes").ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, forced)
		<-ctx.Done()
		ran <- context.Cause(ctx)
		return mine
	}), gocron.WithName("\x00 any bytes"))
	require.NoError(t, err)
	_, err = scheduler.NewJob(once, locker.Task("another", func(context.Context) error { return nil }), gocron.WithName("one"))
	require.NoError(t, err)
	scheduler.Start()
	require.ErrorIs(t, redistest.Within(t, soon, ran, "it runs"), rlock.ErrLost)
	var texts []string
	for range 2 {
		err := redistest.Within(t, soon, failed, "it fails")
		texts = append(texts, err.Error())
		if errors.Is(err, mine) {
			require.ErrorIs(t, err, rlock.ErrLost)
		}
	}
	require.Contains(t, strings.Join(texts, "\n"), `a run of the task "another" has no lock (give its job gocron.WithName("another")`)
	require.NoError(t, scheduler.Shutdown())
	redistest.Eventually(t, soon, func() bool { return client.Stats().Holds == 0 }, "no hold is left")
}

// One attempt: while Redis is away a run is skipped, and the schedule goes on.
func TestOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	client, err := rlock.New(s.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	refused, ran := make(chan error, 100), make(chan bool, 100)
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithGlobalJobOptions(gocron.WithEventListeners(
		gocron.AfterLockError(func(_ uuid.UUID, _ string, err error) { refused <- err }))))
	require.NoError(t, err)
	_, err = scheduler.NewJob(gocron.DurationJob(100*time.Millisecond), locker.Task("x", func(context.Context) error {
		ran <- true
		return nil
	}), gocron.WithName("x"))
	require.NoError(t, err)
	s.Stop()
	scheduler.Start()
	require.ErrorIs(t, redistest.Within(t, soon, refused, "it is refused"), rlock.ErrUnreachable)
	s.Restart()
	redistest.Within(t, soon, ran, "it runs")
	require.NoError(t, scheduler.Shutdown())
}

// once is a schedule of one run, at once.
func once() gocron.JobDefinition { return gocron.OneTimeJob(gocron.OneTimeJobStartImmediately()) }

// newScheduler returns one of this process with a Client, and what its runs fail with.
func newScheduler(t *testing.T) (*rlock.Client, gocron.Scheduler, <-chan error) {
	t.Helper()
	t.Parallel()
	client := newClient(t, redistest.Start(t), rlock.Options{WatchdogTimeout: watchdog})
	failed := make(chan error, 10)
	scheduler, err := gocron.NewScheduler(gocron.WithGlobalJobOptions(gocron.WithEventListeners(
		gocron.AfterJobRunsWithError(func(_ uuid.UUID, _ string, err error) { failed <- err }))))
	require.NoError(t, err)
	return client, scheduler, failed
}

// A lock is for one run: a job of that name without the Locker does not run beside it.
func TestLockIsForOneRun(t *testing.T) {
	client, scheduler, failed := newScheduler(t)
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	inside := make(chan bool, 1)
	_, err := locker.NewJob(scheduler, once(), "x", func(ctx context.Context) error {
		inside <- true
		<-ctx.Done()
		return nil
	})
	require.NoError(t, err)
	scheduler.Start()
	redistest.Within(t, soon, inside, "it runs")
	_, err = scheduler.NewJob(once(), locker.Task("x", func(context.Context) error {
		inside <- true
		return nil
	}), gocron.WithName("x"))
	require.NoError(t, err)
	require.ErrorContains(t, redistest.Within(t, soon, failed, "the other does not run"), "has no lock")
	require.NoError(t, scheduler.Shutdown())
	require.Empty(t, inside)
}

// A task that begins after its lock was lost does not run, nor under the lock of the next run.
func TestLostBeforeTheTask(t *testing.T) {
	client, scheduler, failed := newScheduler(t)
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	inside, lost := make(chan bool, 1), make(chan bool, 1)
	_, err := locker.NewJob(scheduler, once(), "x", func(context.Context) error {
		inside <- false
		return nil
	}, gocron.WithEventListeners(gocron.BeforeJobRuns(func(uuid.UUID, string) {
		forced, err := client.Mutex("x").ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, forced)
		redistest.Eventually(t, soon, func() bool { return client.Stats().Lost == 1 }, "it is lost")
		lost <- true
		require.True(t, redistest.Within(t, soon, inside, "the next one runs"))
	})))
	require.NoError(t, err)
	scheduler.Start()
	redistest.Within(t, soon, lost, "the lock of the first one is lost")
	_, err = locker.NewJob(scheduler, once(), "x", func(ctx context.Context) error {
		inside <- true
		<-ctx.Done()
		return nil
	})
	require.NoError(t, err)
	require.ErrorIs(t, redistest.Within(t, soon, failed, "the first one fails"), rlock.ErrLost)
	require.NoError(t, scheduler.Shutdown())
	require.Empty(t, inside)
}

// unlocking is a Locker that tells when gocron has unlocked.
type unlocking struct {
	gocron.Locker
	did chan<- bool
}

func (l unlocking) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	lock, err := l.Locker.Lock(ctx, name)
	return unlocked{lock, l.did}, err
}

type unlocked struct {
	gocron.Lock
	did chan<- bool
}

func (l unlocked) Unlock(ctx context.Context) error {
	defer func() { l.did <- true }()
	return l.Lock.Unlock(ctx)
}

// A run loses its lock before its task begins, and the next run has it by then. One of the two tasks runs, and has the lock until it ends: the
// end of the other one frees nothing.
func TestLostBeforeTheNextTask(t *testing.T) {
	client, scheduler, failed := newScheduler(t)
	locker := rlockgocron.NewLocker(client, time.Millisecond)
	inside, ends := make(chan context.Context, 2), make(chan bool)
	task := locker.Task("x", func(ctx context.Context) error {
		inside <- ctx
		<-ends
		return nil
	})
	add := func(before func()) (goOn chan<- bool, freed <-chan bool) {
		t.Helper()
		ready, goes, did := make(chan bool, 1), make(chan bool, 1), make(chan bool, 1)
		_, err := scheduler.NewJob(once(), task, gocron.WithName("x"), gocron.WithDistributedJobLocker(unlocking{locker, did}),
			gocron.WithEventListeners(gocron.BeforeJobRuns(func(uuid.UUID, string) {
				before()
				ready <- true
				redistest.Within(t, soon, goes, "its task begins")
			})))
		require.NoError(t, err)
		redistest.Within(t, soon, ready, "it has the lock")
		return goes, did
	}
	scheduler.Start()
	first, freedFirst := add(func() {
		forced, err := client.Mutex("x").ForceUnlock(context.Background())
		require.NoError(t, err)
		require.True(t, forced)
		redistest.Eventually(t, soon, func() bool { return client.Stats().Lost == 1 }, "it is lost")
	})
	second, freedSecond := add(func() {})
	first <- true
	ctx := redistest.Within(t, soon, inside, "one task runs")
	second <- true
	require.ErrorIs(t, redistest.Within(t, soon, failed, "the other does not"), rlock.ErrLost)
	redistest.Within(t, soon, freedSecond, "its run is over")
	require.NoError(t, context.Cause(ctx))
	held, err := client.Mutex("x").IsLocked(t.Context())
	require.NoError(t, err)
	require.True(t, held)
	close(ends)
	redistest.Within(t, soon, freedFirst, "both are over")
	redistest.Eventually(t, soon, func() bool { return client.Stats().Holds == 0 }, "it is free")
	require.NoError(t, scheduler.Shutdown())
	require.Empty(t, inside)
}

// The ctx of a task has what the job's has, and the hold.
func TestContextOfTheJob(t *testing.T) {
	client, scheduler, failed := newScheduler(t)
	locker, elector := rlockgocron.NewLocker(client, time.Millisecond), rlockgocron.NewElector(client.Mutex("scheduler"))
	type key struct{}
	ofRun, resign := context.WithCancel(t.Context())
	led := make(chan error, 1)
	go func() { led <- elector.Run(ofRun) }() // ends with ofRun
	redistest.Eventually(t, soon, func() bool { return elector.IsLeader(t.Context()) == nil }, "it leads")
	inside := make(chan context.Context, 1)
	fn := func(ctx context.Context) error {
		inside <- ctx
		<-ctx.Done()
		return context.Cause(ctx)
	}
	requireBoth := func() {
		t.Helper()
		ctx := redistest.Within(t, soon, inside, "it runs")
		require.Equal(t, "of the job", ctx.Value(key{}))
		_, held := rlock.TrustedUntil(ctx)
		require.True(t, held)
	}
	ofJob, stop := context.WithCancelCause(context.WithValue(t.Context(), key{}, "of the job"))
	mine := errors.New("mine")
	scheduler.Start()
	_, err := locker.NewJob(scheduler, once(), "x", fn, gocron.WithContext(ofJob))
	require.NoError(t, err)
	requireBoth()
	_, err = scheduler.NewJob(once(), elector.Task(fn), gocron.WithContext(ofJob))
	require.NoError(t, err)
	requireBoth()
	stop(mine)
	for range 2 {
		require.ErrorIs(t, redistest.Within(t, soon, failed, "it stops"), mine)
	}
	resign()
	require.ErrorIs(t, redistest.Within(t, soon, led, "it resigns"), context.Canceled)
	require.NoError(t, scheduler.Shutdown())
}

// The caller of Run may want to know of the leadership, too. A task that begins after it does not run.
func TestElectorReports(t *testing.T) {
	client, scheduler, failed := newScheduler(t)
	elector := rlockgocron.NewElector(client.Mutex("scheduler"))
	require.ErrorIs(t, elector.IsLeader(t.Context()), rlockgocron.ErrNotLeader)
	var told rlock.Leadership
	ctx, resign := context.WithCancel(t.Context())
	led := make(chan error, 1)
	go func() { led <- elector.Run(ctx, rlock.ReportTo(&told)) }() // ends with ctx
	redistest.Eventually(t, soon, func() bool { return elector.IsLeader(t.Context()) == nil }, "it leads")
	require.True(t, told.State().Leading)
	resign()
	require.ErrorIs(t, redistest.Within(t, soon, led, "it resigns"), context.Canceled)
	require.ErrorIs(t, elector.IsLeader(t.Context()), rlockgocron.ErrNotLeader)
	ran := make(chan bool, 1)
	_, err := scheduler.NewJob(once(), elector.Task(func(context.Context) error {
		ran <- true
		return nil
	}))
	require.NoError(t, err)
	scheduler.Start()
	require.ErrorIs(t, redistest.Within(t, soon, failed, "the task fails"), rlockgocron.ErrNotLeader)
	require.NoError(t, scheduler.Shutdown())
	require.Empty(t, ran)
}
