package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// startPostgres runs PostgreSQL with its defaults.
func startPostgres(dir string) (*otherServer, error) {
	initdb, err := findProgram("initdb", "postgresql (make postgres installs it)",
		"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin")
	if err != nil {
		return nil, err
	}
	as, err := ordinaryUser(dir)
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	cmd := exec.Command(initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
	cmd.Dir, cmd.SysProcAttr = dir, as
	if said, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, said)
	}
	return onFreePort(func(addr string) (*otherServer, error) {
		_, port, _ := net.SplitHostPort(addr)
		cmd := exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), "-D", data, "-k", dir, "-p", port)
		cmd.Dir = dir
		if as != nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as.Credential}
		}
		s := &otherServer{addr: addr}
		var err error
		s.stop, err = startProgram(cmd, syscall.SIGQUIT, func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			conn, err := pgx.Connect(ctx, postgresURL(addr))
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			return conn.QueryRow(ctx, "SHOW server_version").Scan(&s.version)
		})
		return s, err
	})
}

// ordinaryUser gives the folder to an ordinary user if this is root, because PostgreSQL refuses to run as root.
func ordinaryUser(dir string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return nil, nil //nolint:nilnil // nothing to change
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	return as, os.Chown(dir, int(uid), int(gid))
}

func postgresURL(addr string) string {
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

var errNotLocked = errors.New("the session did not hold the lock")

// openPostgres takes session advisory locks. Each keeps a pool connection to itself until the unlock. A session ends with its connection,
// so there is no lease.
func openPostgres(o openOptions) (*client, error) {
	config, err := pgxpool.ParseConfig(postgresURL(o.addr))
	if err != nil {
		return nil, err
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, err
	}
	return &client{
		mutex: func(name string) lockFunc {
			h := fnv.New64a()
			h.Write([]byte(name))
			key := int64(h.Sum64())
			return func(ctx context.Context) (func() error, error) {
				conn, err := pool.Acquire(ctx)
				if err != nil {
					return nil, err
				}
				if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
					conn.Release()
					return nil, err
				}
				return func() error {
					defer conn.Release()
					var held bool
					err := conn.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", key).Scan(&held)
					if err == nil && !held {
						err = errNotLocked
					}
					return err
				}, nil
			}
		},
		close: pool.Close,
	}, nil
}
