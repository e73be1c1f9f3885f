package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"
)

// zookeeperConfig is the example in its documentation, without the limit of 60 connections per address: all come from one here.
const zookeeperConfig = `tickTime=2000
dataDir=%s
clientPortAddress=127.0.0.1
clientPort=%s
maxClientCnxns=0
admin.enableServer=false
`

// startZookeeper runs a single ZooKeeper: each write is on disk before its reply.
func startZookeeper(dir string) (*otherServer, error) {
	path, err := findProgram("zkServer.sh", "zookeeper", "/usr/share/zookeeper/bin", "/opt/homebrew/opt/zookeeper/bin")
	if err != nil {
		return nil, err
	}
	return onFreePort(func(addr string) (*otherServer, error) {
		_, port, _ := net.SplitHostPort(addr)
		config := filepath.Join(dir, port+".cfg")
		text := fmt.Sprintf(zookeeperConfig, filepath.Join(dir, port), port)
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			return nil, err
		}
		cmd := exec.Command(path, "start-foreground", config) // becomes java
		cmd.Env = append(os.Environ(), "ZOO_LOG_DIR="+dir)
		s := &otherServer{addr: addr, commands: func() (commands, error) {
			_, n, err := zookeeperSays(addr)
			return commands{"packet": n}, err
		}}
		var err error
		s.stop, err = startProgram(cmd, syscall.SIGTERM, func() error {
			var err error
			s.version, _, err = zookeeperSays(addr)
			return err
		})
		return s, err
	})
}

// zookeeperSays returns its version, and its count of received packets.
func zookeeperSays(addr string) (version string, received int64, err error) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return "", 0, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", 0, err
	}
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return "", 0, err
	}
	said, err := io.ReadAll(conn)
	if err != nil {
		return "", 0, err
	}
	for line := range strings.Lines(string(said)) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name {
		case "Zookeeper version":
			version, _, _ = strings.Cut(value, "-")
		case "Received":
			received, err = strconv.ParseInt(value, 10, 64)
		}
	}
	if version == "" || err != nil {
		return "", 0, fmt.Errorf("ZooKeeper says %q", said)
	}
	return version, received, nil
}

// zookeeperSession is the default session here: its client has no default.
const zookeeperSession = 10 * time.Second

// openZookeeper has one session. Its Lock takes no ctx, and does not retry.
func openZookeeper(o openOptions) (*client, error) {
	conn, _, err := zk.Connect([]string{o.addr}, cmp.Or(o.lease, zookeeperSession), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	return &client{
		mutex: func(name string) lockFunc {
			return func(context.Context) (func() error, error) {
				l := zk.NewLock(conn, "/"+name, zk.WorldACL(zk.PermAll))
				return l.Unlock, l.Lock()
			}
		},
		close: conn.Close,
	}, nil
}
