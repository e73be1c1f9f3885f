package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/rueidis"
)

// server is the Redis of a demo.
type server struct {
	addr     string
	embedded bool
	about    string // for people
	stop     func()
}

// findServer returns the Redis at REDIS_ADDR, one that it started, or an embedded one.
func (p *program) findServer(ctx context.Context) (*server, error) {
	if addr := p.getenv("REDIS_ADDR"); addr != "" {
		o, err := options(addr)
		if err != nil {
			return nil, err
		}
		// Not addr itself: it may have a password.
		return &server{addr: addr, about: strings.Join(o.InitAddress, ",") + ", from REDIS_ADDR", stop: func() {}}, nil
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return embedded("there is no redis-server on PATH")
	}
	// A free port is free only until another process takes it: try again.
	for range 3 {
		var s *server
		if s, err = startServer(ctx, path); err == nil || ctx.Err() != nil {
			return s, err
		}
	}
	fmt.Fprintln(p.err, "rlock:", err)
	return embedded("redis-server does not start")
}

// embedded runs a Redis inside this process.
func embedded(why string) (*server, error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // leases are to run out
	if err := m.Start(); err != nil {
		return nil, err
	}
	return &server{addr: m.Addr(), embedded: true, about: "miniredis, embedded: " + why, stop: m.Close}, nil
}

// startServer runs redis-server in a folder of its own.
func startServer(ctx context.Context, path string) (*server, error) {
	dir, err := os.MkdirTemp("", "rlock-demo-")
	if err != nil {
		return nil, err
	}
	addr, err := freeAddr()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	_, port, _ := net.SplitHostPort(addr)
	logName := filepath.Join(dir, "redis.log")
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--dir", dir,
		"--logfile", logName, "--save", "", "--appendonly", "no", "--daemonize", "no")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	ended := make(chan struct{})
	go func() { // ends with the server
		defer close(ended)
		_ = cmd.Wait()
	}()
	stop := func() {
		_ = cmd.Process.Kill() // it has nothing to save
		<-ended
		_ = os.RemoveAll(dir)
	}
	version, err := answers(ctx, addr, cmd.Process.Pid, ended)
	if err != nil {
		log, _ := os.ReadFile(logName)
		stop()
		return nil, fmt.Errorf("%s: %w\n%s%s", path, err, said.Bytes(), log)
	}
	return &server{addr: addr, about: fmt.Sprintf("redis-server %s, started on %s", version, addr), stop: stop}, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// answers waits until the process pid answers at addr, and returns its version. Somebody else may
// have got the port.
func answers(ctx context.Context, addr string, pid int, ended <-chan struct{}) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		var info map[string]string
		if info, err = serverInfo(ctx, addr); err == nil {
			if info["process_id"] != strconv.Itoa(pid) {
				return "", fmt.Errorf("port of %s was taken by another", addr)
			}
			return info["redis_version"], nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ended:
			return "", errors.New("ended at once")
		case <-ctx.Done():
			return "", fmt.Errorf("does not answer: %w", err)
		}
	}
}

func serverInfo(ctx context.Context, addr string) (map[string]string, error) {
	rdb, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true,
	})
	if err != nil {
		return nil, err
	}
	defer rdb.Close()
	text, err := rdb.Do(ctx, rdb.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return nil, err
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}
