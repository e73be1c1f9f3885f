package redistest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// haproxyConfig is as docs/servers.md shows it. HAProxy inherits its port, so no other test can take that.
const haproxyConfig = `
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen redis
    option tcp-check
    bind fd@3
    tcp-check send PING\r\n
    tcp-check expect string +PONG
    tcp-check send INFO\ replication\r\n
    tcp-check expect string role:master
    default-server check inter 200ms fall 1 rise 1 on-marked-down shutdown-sessions
`

// StartHAProxy runs HAProxy before servers: it leads clients to the one that is a master, and ends the sessions of one that no longer is.
// The test's clean-up ends it.
func StartHAProxy(tb testing.TB, servers ...*Server) (addr string) {
	tb.Helper()
	bin, err := exec.LookPath("haproxy")
	if err != nil {
		tb.Fatal(err)
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = ln.Close() }()         // HAProxy has it, too
	port, err := ln.(*net.TCPListener).File() //nolint:errcheck // a TCP listener
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = port.Close() }()
	var config strings.Builder
	config.WriteString(haproxyConfig)
	for i, s := range servers {
		fmt.Fprintf(&config, "    server redis%d %s\n", i, s.Addr())
	}
	dir := tb.TempDir()
	file := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(bin, "-db", "-f", file)
	cmd.ExtraFiles = []*os.File{port} // the third
	proc, err := spawn(filepath.Join(dir, "haproxy.log"), cmd)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { proc.end(syscall.SIGTERM) })
	return ln.Addr().String()
}
