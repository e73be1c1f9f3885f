//go:build interop

package rlock_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/internal/testing/redistest"
)

// redisson is a process with one Redisson, or with another library that speaks its format, driven by the protocol in
// redisson/src/main/java/interop/Peer.java.
type redisson struct {
	process *os.Process
	first   <-chan reply
	uuid    string // the value of the first reply: in Java, the Redisson's
	in      io.WriteCloser
	threads atomic.Int64
	gone    chan struct{} // closed when the process has ended and its output was read

	mu   sync.Mutex            // guards the following, and writes to in
	last int                   // request
	open map[string]chan reply // by the request's ID
}

// reply is one answer. The error is a javaError.
type reply struct {
	event

	value string
}

type javaError struct{ class, message string }

func (e *javaError) Error() string { return e.class + ": " + e.message }

const makeInterop = "`make interop` builds it, and installs what that needs"

// startJava runs a Redisson of the setting's version. It ends with the test's clean-up or with this process.
func (w *world) startJava(t testing.TB, watchdog time.Duration) *redisson {
	t.Helper()
	defer startingJava()()
	r := w.launchJava(t, watchdog)
	r.connected(t)
	return r
}

// launchJava is startJava for several side by side, under the lock of the machine: connected waits for each.
func (w *world) launchJava(t testing.TB, watchdog time.Duration) *redisson {
	t.Helper()
	jar := filepath.Join("redisson", "target", w.version, "peer.jar")
	if _, err := os.Stat(jar); err != nil {
		t.Fatalf("%v: %s", err, makeInterop)
	}
	args := []string{"-jar", jar, fmt.Sprintf("--watchdog=%d", watchdog.Milliseconds())}
	if w.cluster {
		args = append(args, "--mode=cluster")
	}
	return launchPeer(t, "Redisson "+w.version, exec.Command("java", append(args, w.addrs...)...))
}

// startPeer runs a program that speaks the protocol. It ends with the test's clean-up or with this process.
func startPeer(t testing.TB, what string, cmd *exec.Cmd) *redisson {
	t.Helper()
	r := launchPeer(t, what, cmd)
	r.connected(t)
	return r
}

func launchPeer(t testing.TB, what string, cmd *exec.Cmd) *redisson {
	t.Helper()
	in := answer(cmd.StdinPipe()).ok(t)
	out := answer(cmd.StdoutPipe()).ok(t)
	var log bytes.Buffer // read after the process has ended
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: %s", err, makeInterop)
	}
	first := make(chan reply, 1)
	r := &redisson{
		process: cmd.Process, in: in, first: first,
		gone: make(chan struct{}),
		open: map[string]chan reply{"ready": first},
	}
	go func() { // ends with the process, which the clean-up ends
		defer close(r.gone)
		r.read(out)
		_ = cmd.Wait() // killed, or ended on request
	}()
	t.Cleanup(func() {
		_ = in.Close() // ends the process
		select {
		case <-r.gone:
		case <-time.After(5 * time.Second):
			r.kill()
		}
		if t.Failed() {
			t.Logf("%s said on stderr:\n%s", what, log.String())
		}
	})
	return r
}

// connected waits for the first reply.
func (r *redisson) connected(t testing.TB) {
	t.Helper()
	first := r.await(t, r.first)
	require.NoError(t, first.err, "connect")
	r.uuid = first.value
}

// kill is kill -9.
func (r *redisson) kill() {
	_ = r.process.Kill()
	<-r.gone
}

// read delivers the replies until the process ends.
func (r *redisson) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		id, reply := parseReply(lines.Text())
		r.mu.Lock()
		ch := r.open[id]
		delete(r.open, id)
		r.mu.Unlock()
		if ch != nil {
			ch <- reply
		}
	}
}

// parseReply splits ID WALL_US TOOK_US ok VALUE, or err EXCEPTION MESSAGE.
func parseReply(line string) (id string, r reply) {
	words := strings.Fields(line)
	if len(words) < 5 {
		return "", r
	}
	wall, _ := strconv.ParseInt(words[1], 10, 64)
	took, _ := strconv.ParseInt(words[2], 10, 64)
	r.ended = time.UnixMicro(wall)
	r.began = r.ended.Add(-time.Duration(took) * time.Microsecond)
	r.value = words[4]
	if words[3] != "ok" {
		message := ""
		if len(words) > 5 {
			message, _ = url.QueryUnescape(words[5])
		}
		r.err = &javaError{class: words[4], message: message}
	}
	return words[0], r
}

// send sends a request to a thread.
func (r *redisson) send(t testing.TB, thread, op string, args ...string) <-chan reply {
	t.Helper()
	ch := make(chan reply, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	id := strconv.Itoa(r.last)
	r.open[id] = ch
	_, err := fmt.Fprintln(r.in, strings.Join(append([]string{id, thread, op}, args...), " "))
	require.NoError(t, err, "Redisson's process has ended")
	return ch
}

// sum adds up the numbers in replies, of this or another process.
func (r *redisson) sum(t testing.TB, replies []<-chan reply) (sum int64) {
	t.Helper()
	for _, ch := range replies {
		got := r.await(t, ch)
		require.NoError(t, got.err)
		n := answer(strconv.ParseInt(got.value, 10, 64)).ok(t)
		sum += n
	}
	return sum
}

func (r *redisson) await(t testing.TB, ch <-chan reply) reply {
	t.Helper()
	began := time.Now()
	for left, gone := testTimeout, false; left > 0 && !gone; left = testTimeout - redistest.Ran(t, began, time.Now()) {
		select {
		case got := <-ch:
			return got
		case <-r.gone:
			gone = true
		case <-time.After(left):
		}
	}
	select {
	case got := <-ch:
		return got
	default:
		require.FailNow(t, "Redisson does not answer, or its process has ended")
		panic("unreachable")
	}
}

// javaThread is a thread in a Redisson process.
type javaThread struct {
	of         *redisson
	name, kind string // kind as in mutexOf
}

// thread starts a thread, which lives as long as its process.
func (r *redisson) thread() *javaThread {
	return &javaThread{of: r, name: fmt.Sprintf("t%d", r.threads.Add(1))}
}

// javaOf is the thread of an actor in Java, or nil.
func javaOf(a actor) *javaThread {
	j, _ := a.(*javaThread)
	return j
}

func (j *javaThread) as(kind string) actor { return &javaThread{j.of, j.name, kind} }

func (j *javaThread) lockKind() string { return j.kind }

// word names a lock in the protocol.
func (j *javaThread) word(name string) string { return wordOf(j.kind, name) }

func wordOf(kind, name string) string {
	if kind != "" {
		kind += "/"
	}
	return kind + url.QueryEscape(name)
}

// send begins an operation.
func (j *javaThread) send(t testing.TB, op string, args ...string) <-chan reply {
	t.Helper()
	return j.of.send(t, j.name, op, args...)
}

// sleeps waits until the thread sleeps until a message comes.
func (j *javaThread) sleeps(t testing.TB) {
	t.Helper()
	redistest.Eventually(t, testTimeout, func() bool { return j.ask(t, "sleeps") == "true" }, "the Java thread sleeps")
}

func (j *javaThread) do(t testing.TB, op string, args ...string) reply {
	t.Helper()
	return j.of.await(t, j.send(t, op, args...))
}

// ask is do for operations that cannot fail.
func (j *javaThread) ask(t testing.TB, op string, args ...string) string {
	t.Helper()
	got := j.do(t, op, args...)
	require.NoError(t, got.err)
	return got.value
}

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

func (j *javaThread) start(t testing.TB, name string, lease time.Duration) <-chan event {
	t.Helper()
	args := []string{j.word(name)}
	if lease > 0 {
		args = append(args, ms(lease))
	}
	return j.startOp(t, "lock", args...)
}

// startOp begins an operation.
func (j *javaThread) startOp(t testing.TB, op string, args ...string) <-chan event {
	t.Helper()
	replies := j.send(t, op, args...)
	events := make(chan event, 1)
	go func() { // ends with the process at the latest
		select {
		case r := <-replies:
			events <- r.event
		case <-j.of.gone:
		}
	}()
	return events
}

func (j *javaThread) unlock(t testing.TB, name string) event {
	t.Helper()
	return j.do(t, "unlock", j.word(name)).event
}

func (j *javaThread) tryInVain(t testing.TB, name string) {
	t.Helper()
	require.Equal(t, "false", j.ask(t, "trylock", j.word(name), "0"))
}

func (j *javaThread) force(t testing.TB, name string) event {
	t.Helper()
	r := j.do(t, "force", j.word(name))
	require.NoError(t, r.err)
	require.Equal(t, "true", r.value)
	return r.event
}

func (j *javaThread) look(t testing.TB, name string) (locked bool, count int, ttl time.Duration) {
	t.Helper()
	name = j.word(name)
	locked = answer(strconv.ParseBool(j.ask(t, "locked", name))).ok(t)
	count = answer(strconv.Atoi(j.ask(t, "count", name))).ok(t)
	left := answer(strconv.ParseInt(j.ask(t, "ttl", name), 10, 64)).ok(t)
	require.Equal(t, strconv.FormatBool(count > 0), j.ask(t, "held", name))
	if left == -2 { // the key is absent
		left = 0
	}
	return locked, count, time.Duration(left) * time.Millisecond
}

func (j *javaThread) field(t testing.TB, _ string) string {
	t.Helper()
	return j.of.uuid + ":" + j.ask(t, "threadid")
}

func (j *javaThread) requireNotHeld(t testing.TB, err error) {
	t.Helper()
	var e *javaError
	require.ErrorAs(t, err, &e)
	require.Equal(t, "IllegalMonitorStateException", e.class)
	require.Equal(t, "attempt to unlock lock, not locked by current thread by node id: "+j.of.uuid+
		" thread-id: "+j.ask(t, "threadid"), e.message)
}
