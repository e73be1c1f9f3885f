package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"
)

// TB is the part of testing.TB that the helpers need.
type TB = testing.TB

// startTimeout bounds the time until a new server answers.
const startTimeout = 15 * time.Second

// Server is a redis-server process, or one in memory in the virtual world. Its port, folder and arguments outlive the process, so it can come back as the same server.
//
// Methods that change the process may be called from any goroutine, except Restart: it can fail the test, so it belongs on the test's
// goroutine.
type Server struct {
	tb    testing.TB // nil for the shared server
	dir   string
	port  int
	guard io.Closer // keeps the port ours, also while the server is down
	world *world
	inMem *memory // instead of all of the above but tb, in the virtual world
	args  func(port int) []string

	mu   sync.Mutex // guards the fields below
	proc *process
}

// Start runs a server for one test, without persistence, and returns when it answers. The args are appended to its command line, such as
// "--maxmemory", "1mb". The test's clean-up ends it.
func Start(tb testing.TB, args ...string) *Server {
	tb.Helper()
	if w := worldOf(tb); w != nil {
		return w.start(tb, args)
	}
	return start(tb, func(port int) []string { return append(plainArgs(port), args...) })
}

// ForExample starts a server for an example. It panics on errors, as an example has no test to fail. Call stop to end the server.
func ForExample() (addr string, stop func()) {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		panic(err)
	}
	s, err := newServer(dir, plainArgs)
	if err != nil {
		panic(err)
	}
	return s.Addr(), func() {
		s.retire()
		_ = os.RemoveAll(dir)
	}
}

// plainArgs are the arguments of a server that listens only on localhost and stores nothing.
func plainArgs(port int) []string {
	return []string{
		"--bind", "127.0.0.1", "--port", strconv.Itoa(port),
		"--save", "", "--appendonly", "no",
		// Sync replicas at once, instead of waiting 5 s for more.
		"--repl-diskless-sync-delay", "0",
	}
}

// start runs a server in memory.
func (w *world) start(tb testing.TB, args []string) *Server {
	tb.Helper()
	if len(args) > 0 {
		tb.Fatalf("redistest: a server in memory has no arguments: %q", args)
	}
	m, err := newMemory(w)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.stop)
	return &Server{tb: tb, world: w, inMem: m}
}

// start runs a server with the command line args(port).
func start(tb testing.TB, args func(port int) []string) *Server {
	tb.Helper()
	// Make the folder first: clean-ups run last to first, and its removal must follow the end of the process.
	s, err := newServer(tb.TempDir(), args)
	if err != nil {
		tb.Fatal(err)
	}
	s.tb = tb
	tb.Cleanup(s.retire)
	return s
}

// newServer takes a port and runs a server on it.
func newServer(dir string, args func(port int) []string) (*Server, error) {
	var err error
	// A process that ignores the guards may have taken the port in between, so try again.
	for range 5 {
		s := &Server{dir: dir, args: args}
		s.port, s.guard = takePort()
		if err = s.run(); err == nil {
			return s, nil
		}
		_ = s.guard.Close()
		if errors.Is(err, errNoRedis) {
			break
		}
	}
	return nil, err
}

// retire ends the server for good.
func (s *Server) retire() {
	s.Stop()
	_ = s.guard.Close()
}

// takePort returns an unused port whose cluster bus port is also free. Both are below the range from which kernels
// choose ports for outgoing connections: such a connection could take the port of a server that is down, even by
// connecting to itself.
//
// The guard keeps the port from servers of other tests, in any process, until it is closed. It listens two ports further on, and its owner
// may use all four.
func takePort() (port int, guard io.Closer) {
	for {
		port := 11000 + 4*rand.IntN(busOffset/4)
		guard, err := net.Listen("tcp4", hostPort(port+2))
		if err != nil {
			continue
		}
		if free(port) && free(port+busOffset) {
			return port, guard
		}
		_ = guard.Close()
	}
}

func free(port int) bool {
	ln, err := net.Listen("tcp4", hostPort(port))
	if err != nil {
		return false
	}
	_ = ln.Close()
	return true
}

func hostPort(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// run starts the process and waits for an answer.
func (s *Server) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log := filepath.Join(s.dir, "redis.log")
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return errNoRedis
	}
	proc, err := spawn(log, exec.Command(bin, append(s.args(s.port), "--dir", s.dir)...))
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(2 * time.Millisecond) {
		err = ready(hostPort(s.port), proc.os.Pid)
		if err == nil {
			s.proc = proc
			return nil
		}
		if proc.ended() || time.Now().After(deadline) {
			proc.end(syscall.SIGKILL)
			said, _ := os.ReadFile(log)
			return fmt.Errorf("redistest: redis-server on port %d did not get ready: %w\n%s", s.port, err, said)
		}
	}
}

// ready checks that the listener on addr is the process pid and serves. The pid matters: if another test's server took the port, that
// server would answer.
func ready(addr string, pid int) error {
	conn, err := net.DialTimeout("tcp4", addr, time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "PING\r\nINFO server\r\n"); err != nil {
		return err
	}
	r := bufio.NewReader(conn)
	pong, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(pong, "-NOAUTH") {
		return nil // started with a password: more is not available without it
	}
	if !strings.HasPrefix(pong, "+PONG") {
		return fmt.Errorf("PING: %s", strings.TrimSpace(pong))
	}
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		if got, ok := strings.CutPrefix(line, "process_id:"); ok {
			if got = strings.TrimSpace(got); got != strconv.Itoa(pid) {
				return fmt.Errorf("port is taken by process %s", got)
			}
			return nil
		}
	}
}

// Answers reports whether the server answers a PING with PONG at once. It does not while it runs a script or sleeps.
func (s *Server) Answers() bool {
	conn, err := s.world.dial(s.Addr())
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
	_, _ = io.WriteString(conn, "PING\r\n")
	pong := make([]byte, len("+PONG"))
	_, err = io.ReadFull(conn, pong)
	return err == nil && string(pong) == "+PONG"
}

// Connections returns the number of clients, without its own connection and other servers: sentinels and replicas connect at any time.
func (s *Server) Connections(tb testing.TB) (n int) {
	tb.Helper()
	if s.inMem != nil {
		return s.inMem.way.Conns()
	}
	conn, err := s.world.dial(s.Addr())
	if err != nil {
		tb.Fatalf("redistest: %v", err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, _ = io.WriteString(conn, "CLIENT LIST\r\n")
	reply := bufio.NewReader(conn)
	header, _ := reply.ReadString('\n')
	size, _ := strconv.Atoi(strings.Trim(header, "$\r\n"))
	list := make([]byte, size)
	if _, err := io.ReadFull(reply, list); err != nil || size == 0 {
		tb.Fatalf("redistest: CLIENT LIST was not answered: %v", err)
	}
	for client := range strings.Lines(string(list)) {
		if !strings.Contains(client, " name=sentinel-") && !strings.Contains(client, " flags=S ") && !strings.Contains(client, " flags=M ") {
			n++
		}
	}
	return n - 1
}

// Addr returns the server's host:port; it never changes.
func (s *Server) Addr() string {
	if s.inMem != nil {
		return s.inMem.addr
	}
	return hostPort(s.port)
}

// Pid returns the process id, or 0 while the server is down.
func (s *Server) Pid() int {
	if s.inMem != nil {
		return s.inMem.pid()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc == nil {
		return 0
	}
	return s.proc.os.Pid
}

// Stop ends the server with SIGTERM and waits for its end. It also ends a paused server, and does nothing if the server is down.
func (s *Server) Stop() { s.end(syscall.SIGTERM) }

// Kill ends the server with SIGKILL, as a crash does.
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

func (s *Server) end(sig syscall.Signal) {
	if s.inMem != nil {
		s.inMem.stop()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		s.proc.end(sig)
		s.proc = nil
	}
}

// Restart ends the server, if it is up, and starts it with the same port and folder. Its data is lost unless its arguments turn persistence
// on.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	run := s.run
	if s.inMem != nil {
		run = s.inMem.start
	}
	if err := run(); err != nil {
		s.tb.Fatal(err)
	}
}

// Pause freezes the process with SIGSTOP: connections stay open, but nothing answers.
func (s *Server) Pause() {
	if s.inMem != nil {
		s.inMem.way.Hold()
		return
	}
	s.signal(sigPause)
}

// Resume ends a Pause. The server then handles everything sent meanwhile.
func (s *Server) Resume() {
	if s.inMem != nil {
		s.inMem.way.Free()
		return
	}
	s.signal(sigResume)
}

func (s *Server) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.proc != nil {
		_ = s.proc.os.Signal(sig) // fails only if the process is gone
	}
}

// Client returns a client of this server; the test's clean-up closes it.
func (s *Server) Client(tb testing.TB, mod ...func(*rueidis.ClientOption)) rueidis.Client {
	tb.Helper()
	return Dial(tb, s.Addr(), mod...)
}
