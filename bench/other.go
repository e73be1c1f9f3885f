package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// otherServer is a server other than the shared Redis, for a library with its own start.
type otherServer struct {
	addr    string
	version string
	// commands reads its counters. Nil if it has none.
	commands func() (commands, error)
	stop     func()
}

// diskDir is a folder on a disk, where /tmp may be in memory.
const diskDir = "/var/tmp"

// startOthers starts the servers of the named libraries, each in its own folder. Without such libraries a run needs no other server.
func startOthers(names []string, memory string) (servers map[string]*otherServer, stop func(), err error) {
	var dirs []string
	servers = make(map[string]*otherServer)
	stop = func() {
		for _, s := range servers {
			s.stop()
		}
		for _, dir := range dirs {
			os.RemoveAll(dir)
		}
	}
	for _, name := range names {
		lib, err := findLibrary(name)
		if err != nil || lib.start == nil || servers[name] != nil {
			continue
		}
		parent := diskDir
		if lib.inMemory {
			parent = memory
		}
		dir, err := os.MkdirTemp(parent, "rlock-bench-")
		if err != nil {
			stop()
			return nil, nil, err
		}
		dirs = append(dirs, dir)
		if servers[name], err = lib.start(dir); err != nil {
			stop()
			return nil, nil, fmt.Errorf("server for %s: %w", name, err)
		}
	}
	return servers, stop, nil
}

// site is where a cell's locks live.
type site struct {
	addr     string
	lock     string // the name of the lock, or the prefix of the names
	commands func() (commands, error)
}

// siteFor returns a clean site: Redis is emptied, and on other servers the name is new.
func (b *bench) siteFor(lib *library) (site, error) {
	if lib.start == nil {
		return site{b.server.addr, "lock", b.server.commands}, nil
	}
	other := b.others[lib.name]
	if other == nil {
		return site{}, fmt.Errorf("%s needs a server of its own, which runs only if -libs names it", lib.name)
	}
	b.asked++
	count := other.commands
	if count == nil {
		count = func() (commands, error) { return nil, nil } // nothing to count
	}
	return site{other.addr, fmt.Sprint("lock-", b.asked), count}, nil
}

// findProgram looks on PATH, then where Debian and Homebrew install it off the PATH.
func findProgram(name, debian string, places ...string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return filepath.EvalSymlinks(path)
	}
	for _, place := range places {
		if found, _ := filepath.Glob(filepath.Join(place, name)); len(found) > 0 {
			return found[len(found)-1], nil
		}
	}
	return "", fmt.Errorf("%s is not installed; on Debian it is in the package %s, and without it leave its library out of -libs", name, debian)
}

// errEnded is returned if a server ends during startup.
var errEnded = errors.New("ended at once")

// startProgram runs a server until stop signals it, and returns once up succeeds.
func startProgram(cmd *exec.Cmd, end syscall.Signal, up func() error) (stop func(), err error) {
	said, ended, err := startChild(cmd)
	if err != nil {
		return nil, err
	}
	stop = func() {
		_ = cmd.Process.Signal(end)
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = cmd.Process.Kill()
			<-ended
		}
	}
	timeout := time.After(30 * time.Second)
	for {
		select { // check first: another server may answer on the port ours could not bind
		case <-ended:
			return nil, fmt.Errorf("%s: %w\n%s", cmd.Path, errEnded, said.Bytes())
		case <-time.After(50 * time.Millisecond):
		}
		err := up()
		if err == nil {
			return stop, nil
		}
		select {
		case <-timeout:
			stop()
			return nil, fmt.Errorf("%s does not answer: %w\n%s", cmd.Path, err, said.Bytes())
		default:
		}
	}
}

// onFreePort tries again if the port has been taken meanwhile.
func onFreePort(start func(addr string) (*otherServer, error)) (s *otherServer, err error) {
	for range 3 {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		if s, err = start(addr); !errors.Is(err, errEnded) {
			return s, err
		}
	}
	return nil, err
}

// startSyncedRedis runs a Redis with each write on disk before its reply, like etcd and ZooKeeper.
func startSyncedRedis(dir string) (*otherServer, error) {
	s, err := startServer(dir, "--appendonly", "yes", "--appendfsync", "always")
	if err != nil {
		return nil, err
	}
	info, err := s.info("server")
	if err != nil {
		s.stop()
		return nil, err
	}
	return &otherServer{addr: s.addr, version: info["redis_version"], commands: s.commands, stop: s.stop}, nil
}

// syncTime returns the median time to sync a small write to the disk at dir.
func syncTime(dir string) (time.Duration, error) {
	f, err := os.CreateTemp(dir, "rlock-bench-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took := make([]time.Duration, 51)
	for i := range took {
		start := time.Now()
		if _, err := f.WriteString(strings.Repeat("x", 100)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
