package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// findServer uses the Redis at REDIS_ADDR, starts a redis-server, or embeds one.
func (d *demo) findServer(ctx context.Context) (about string, stop func(), err error) {
	if d.Addr = d.getenv("REDIS_ADDR"); d.Addr != "" {
		o, err := options(d.Addr) // the URL may have a password
		return strings.Join(o.InitAddress, ",") + ", from REDIS_ADDR", func() {}, err
	}
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return d.embed("there is no redis-server on PATH")
	}
	for range 3 { // another process may take the free port first
		if about, stop, err = d.startServer(ctx, path); err == nil || ctx.Err() != nil {
			return about, stop, err
		}
	}
	fmt.Fprintln(d.err, "rlock:", err)
	return d.embed("redis-server does not start")
}

// embed runs a Redis inside this process.
func (d *demo) embed(why string) (about string, stop func(), err error) {
	m := miniredis.NewMiniRedis()
	m.ClockTTL(true) // expire leases in real time
	if err := m.Start(); err != nil {
		return "", nil, err
	}
	d.Addr, d.Embedded = m.Addr(), true
	return "miniredis, embedded: " + why, m.Close, nil
}

var serverVersion = regexp.MustCompile(`version=([\d.]+)`)

// startServer runs a redis-server without files. Its output says when it is ready.
func (d *demo) startServer(ctx context.Context, path string) (about string, stop func(), err error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	d.Addr = l.Addr().String()
	_ = l.Close()
	_, port, _ := net.SplitHostPort(d.Addr)
	cmd := exec.Command(path, "--bind", "127.0.0.1", "--port", port, "--daemonize", "no",
		"--logfile", "", "--save", "", "--appendonly", "no", "--dbfilename", "rlock-demo-"+port+".rdb")
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill() // nothing to save
		_ = cmd.Wait()
	}
	late := time.AfterFunc(demoPatience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	version, said := "?", ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said += lines.Text() + "\n"
		if found := serverVersion.FindStringSubmatch(lines.Text()); found != nil {
			version = found[1]
		}
		if strings.Contains(lines.Text(), "eady to accept connections") {
			go func() { _, _ = io.Copy(io.Discard, out) }() // ends with the server
			return fmt.Sprintf("redis-server %s, started on %s", version, d.Addr), stop, nil
		}
	}
	stop()
	return "", nil, fmt.Errorf("%s did not become ready:\n%s", path, said)
}
