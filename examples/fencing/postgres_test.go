//go:build unix

package main

import (
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// startPostgres runs a PostgreSQL for the test and returns its address. It listens only on a socket in its folder, so no other process can
// take its port. It ends with the test, or with this process.
func startPostgres(t *testing.T) (url string) {
	t.Helper()
	bin := postgresBin(t)
	dir, err := os.MkdirTemp("", "pg") //nolint:usetesting // t.TempDir is closed to other users, and a socket needs a short path
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	var as *syscall.SysProcAttr
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		user := ordinaryUser(t)
		as = &syscall.SysProcAttr{Credential: user}
		require.NoError(t, os.Chown(dir, int(user.Uid), int(user.Gid)))
	}

	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"),
		"-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.Dir, initdb.SysProcAttr = dir, as
	said, err := initdb.CombinedOutput()
	require.NoError(t, err, "%s", said)

	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	// The shell ends the server when its stdin closes, even if this process has died.
	server := exec.Command("sh", "-c", `"$@" & read line; kill -QUIT $!; wait`, "sh",
		filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=", "-F")
	server.Dir, server.SysProcAttr, server.Stdout, server.Stderr = dir, as, log, log
	stdin, err := server.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = server.Wait()
	})

	url = fmt.Sprintf("host=%s user=postgres dbname=postgres", dir)
	db, err := sql.Open("pgx", url)
	require.NoError(t, err)
	defer db.Close()
	up := func() bool { return db.PingContext(t.Context()) == nil }
	if !assert.Eventually(t, up, 30*time.Second, 20*time.Millisecond) {
		said, _ := os.ReadFile(log.Name())
		t.Fatalf("PostgreSQL does not answer:\n%s", said)
	}
	return url
}

// postgresBin finds PostgreSQL's programs: Debian and Homebrew keep them off the PATH.
func postgresBin(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		path, err = filepath.EvalSymlinks(path)
		require.NoError(t, err)
		return filepath.Dir(path)
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatal("no PostgreSQL found: `make postgres` installs it")
	return ""
}

func ordinaryUser(t *testing.T) *syscall.Credential {
	t.Helper()
	nobody, err := user.Lookup("nobody")
	require.NoError(t, err)
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	require.NoError(t, err)
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	require.NoError(t, err)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}
