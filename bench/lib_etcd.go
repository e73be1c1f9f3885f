package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// startEtcd runs a single etcd with its defaults: each write is on disk before its reply.
func startEtcd(dir string) (*otherServer, error) {
	path, err := findProgram("etcd", "etcd-server")
	if err != nil {
		return nil, err
	}
	return onFreePort(func(addr string) (*otherServer, error) {
		peer, err := freeAddr()
		if err != nil {
			return nil, err
		}
		s := &otherServer{addr: addr, commands: func() (commands, error) { return etcdMessages(addr) }}
		s.stop, err = startProgram(exec.Command(path, "--data-dir", filepath.Join(dir, addr), "--log-level", "error",
			"--listen-client-urls", "http://"+addr, "--advertise-client-urls", "http://"+addr,
			"--listen-peer-urls", "http://"+peer, "--initial-advertise-peer-urls", "http://"+peer,
			"--initial-cluster", "default=http://"+peer), syscall.SIGTERM, func() error {
			var said struct{ EtcdServer string }
			err := etcdGet(addr, "/version", func(r *http.Response) error { return json.NewDecoder(r.Body).Decode(&said) })
			s.version = said.EtcdServer
			return err
		})
		return s, err
	})
}

func etcdGet(addr, path string, read func(*http.Response) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: GET %s: %s", path, r.Status)
	}
	return read(r)
}

// etcdMessages returns the number of messages received by etcd, by method: requests, and messages of streams.
func etcdMessages(addr string) (commands, error) {
	all := make(commands)
	err := etcdGet(addr, "/metrics", func(r *http.Response) error {
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			labels, ok := strings.CutPrefix(lines.Text(), `grpc_server_msg_received_total{grpc_method="`)
			if !ok {
				continue
			}
			method, _, _ := strings.Cut(labels, `"`)
			n, err := strconv.ParseFloat(labels[strings.LastIndexByte(labels, ' ')+1:], 64)
			if err != nil {
				return fmt.Errorf("etcd: metrics: %q: %w", lines.Text(), err)
			}
			all[strings.ToLower(method)] += int64(n)
		}
		return lines.Err()
	})
	return all, err
}

// etcdMethods are the methods called by a lock.
var etcdMethods = []string{"txn", "range", "deleterange", "put", "watch", "leasegrant", "leaserevoke", "leasekeepalive"}

// openEtcd opens a single session. All its goroutines are one owner, so at most one of them may use a name.
func openEtcd(o openOptions) (*client, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{o.addr}, DialTimeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	var as []concurrency.SessionOption
	if o.lease > 0 {
		as = append(as, concurrency.WithTTL(int(o.lease.Seconds())))
	}
	session, err := concurrency.NewSession(c, as...)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &client{
		mutex: func(name string) lockFunc {
			return func(ctx context.Context) (func() error, error) {
				m := concurrency.NewMutex(session, "/"+name)
				return func() error { return m.Unlock(ctx) }, m.Lock(ctx)
			}
		},
		close: func() {
			session.Close()
			c.Close()
		},
	}, nil
}
