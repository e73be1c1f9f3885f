package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// server is the redis-server of a run, and the harness's own connection to it.
type server struct {
	addr string
	rdb  rueidis.Client
	stop func()
}

// startServer runs redis-server, by default without persistence.
func startServer(dir string, args ...string) (*server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redis-server: %w", err)
	}
	// Another process may take the free port first: try again.
	for range 3 {
		var s *server
		if s, err = tryServer(path, dir, args); err == nil {
			return s, nil
		}
	}
	return nil, err
}

func tryServer(path, dir string, args []string) (*server, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(addr)
	log := filepath.Join(dir, "redis.log")
	cmd := exec.Command(path, append([]string{"--bind", "127.0.0.1", "--port", port, "--dir", dir, "--logfile", log,
		"--save", "", "--appendonly", "no", "--daemonize", "no"}, args...)...)
	said, ended, err := startChild(cmd)
	if err != nil {
		return nil, err
	}
	kill := func() {
		_ = cmd.Process.Kill() // nothing to save
		<-ended
	}
	rdb, err := connect(addr, cmd.Process.Pid, ended)
	if err != nil {
		kill()
		lines, _ := os.ReadFile(log)
		return nil, fmt.Errorf("redis-server on %s: %w\n%s%s", addr, err, said.Bytes(), lines)
	}
	return &server{addr: addr, rdb: rdb, stop: func() {
		rdb.Close()
		kill()
	}}, nil
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// connect waits until the process pid answers at addr. Another process may have taken the port.
func connect(addr string, pid int, ended <-chan struct{}) (rueidis.Client, error) {
	timeout := time.After(10 * time.Second)
	for {
		rdb, err := rueidis.NewClient(rueidis.ClientOption{
			InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true,
		})
		if err == nil {
			s := &server{rdb: rdb}
			info, err := s.info("server")
			if err == nil && info["process_id"] == strconv.Itoa(pid) {
				return rdb, nil
			}
			rdb.Close()
			return nil, errors.Join(errors.New("the port was taken by another"), err)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ended:
			return nil, errors.New("ended at once")
		case <-timeout:
			return nil, fmt.Errorf("does not answer: %w", err)
		}
	}
}

// info returns a section of INFO by name.
func (s *server) info(section string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	text, err := s.rdb.Do(ctx, s.rdb.B().Info().Section(section).Build()).ToString()
	if err != nil {
		return nil, fmt.Errorf("INFO %s: %w", section, err)
	}
	lines := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			lines[name] = value
		}
	}
	return lines, nil
}

// clear empties the server between two cells.
func (s *server) clear() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return s.rdb.Do(ctx, s.rdb.B().Flushall().Build()).Error()
}
