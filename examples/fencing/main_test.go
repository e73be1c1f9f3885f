//go:build unix

package main

import (
	"context"
	"database/sql"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/examples/internal/program"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

func TestFencing(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "fencing")
	said, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", said)
	postgres := startPostgres(t)
	const nobody = "127.0.0.1:1"

	t.Run("prints what the README shows", func(t *testing.T) {
		stdout, stderr := runProgram(t, binary, redistest.Start(t).Addr(), postgres)
		t.Log("\n" + stdout)
		require.Empty(t, stderr)
		require.Equal(t, blocks(t, "README.md")[1], stdout)
	})
	t.Run("without PostgreSQL", func(t *testing.T) {
		stdout, stderr := runProgram(t, binary, nobody, "postgres://postgres@"+nobody+"/postgres")
		require.Empty(t, stdout)
		require.Regexp(t, `^fencing: no PostgreSQL: .* \(start one, or set DATABASE_URL\)\n$`, stderr)
	})
	t.Run("without Redis", func(t *testing.T) {
		stdout, stderr := runProgram(t, binary, nobody, postgres)
		require.Empty(t, stdout)
		require.Regexp(t, `^fencing: rlock: cannot connect to Redis at .* \(start Redis there, or correct the address\)\n$`, stderr)
	})
	t.Run("without a password in its errors", func(t *testing.T) {
		for _, noURL := range program.NoURLs {
			_, stderr := runProgram(t, binary, noURL, postgres)
			require.Regexp(t, `^fencing: rlock: not a Redis URL: .*\n$`, stderr)
			require.NotContains(t, stderr, program.Secret)
		}
		for _, noURL := range append(program.NoURLs, "u:p@ss:"+program.Secret+"@127.0.0.1:1/x", "user:"+program.Secret) {
			for _, scheme := range []string{"postgres://", "postgres:/", ""} {
				_, stderr := runProgram(t, binary, nobody, scheme+noURL)
				require.Contains(t, stderr, "DATABASE_URL", noURL)
				require.NotContains(t, stderr, program.Secret, noURL)
			}
		}
	})
	t.Run("statements of the page", func(t *testing.T) { requireStatements(t, postgres) })
}

// Whatever happens to Redis or a process, no deposit that succeeded is overwritten.
func TestFencingUnderFaults(t *testing.T) {
	t.Parallel()
	program.Faults(t, func(t *testing.T, f *program.Fault) {
		f.Env = []string{"DATABASE_URL=" + startPostgres(t)}
		client, err := rlock.New(f.Server.Client(t), rlock.Options{})
		require.NoError(t, err)
		t.Cleanup(client.Close)
		for range 7 { // tokens
			require.NoError(t, client.FencedMutex("account:fenced").Do(t.Context(), func(context.Context) error { return nil }))
		}
		args := []string{"-account", "fenced"}
		if !f.Keeps {
			args = append(args, "-lease", "1h") // so B gets the lock because Redis has lost it
		}
		b := f.Start(args...)
		require.Equal(t, "  A has the lock with token 8, and reads 100", f.Find("token"))
		f.Await("  A is stopped")
		f.Strike(b)
		switch {
		case f.Kills:
			again := f.Start(args...)
			require.Equal(t, "  the balance is 180", f.Await("  the balance is"))
			require.Zero(t, again.Wait())
		case f.Keeps:
			require.Equal(t, "  the balance is 180", f.Await("  the balance is"))
			require.Zero(t, b.Wait())
		default: // the tokens begin at 1 again, and the row has seen 8
			require.Equal(t, 1, b.Wait())
			f.Await("fencing: " + errRefused.Error())
			redis := f.Server.Client(t)
			require.NoError(t, redis.Do(t.Context(), redis.B().Set().Key("redisson_lock_token:{account:fenced}").Value("8").Build()).Error())
			again := f.Start("-account", "fenced")
			require.Equal(t, "  A has the lock with token 9, and reads 100", f.Find("token"))
			require.Equal(t, "  the balance is 180", f.Await("  the balance is"))
			require.Zero(t, again.Wait())
		}
		f.Rest() // A does not stay behind
	})
}

// The page shows the code tested here; the README shows the output.
func TestPageShowsTheCode(t *testing.T) {
	code, err := os.ReadFile("bank.go")
	require.NoError(t, err)
	require.Contains(t, blocks(t, page), string(code))
}

const page = "../../docs/fencing.md"

// blocks returns the code blocks of a page.
func blocks(t *testing.T, file string) (all []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, block := range regexp.MustCompile("(?s)```[a-z]*\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		all = append(all, block[1])
	}
	return all
}

// requireStatements runs the page's SQL in order. Each statement with a token refuses a lower token than it has seen.
func requireStatements(t *testing.T, postgres string) {
	t.Helper()
	db, err := sql.Open("pgx", postgres)
	require.NoError(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `CREATE TABLE accounts (name text PRIMARY KEY, balance bigint); INSERT INTO accounts VALUES ('a', 100)`)
	require.NoError(t, err)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	withToken := 0
	for _, statement := range regexp.MustCompile(`(?m)^(ALTER|CREATE|INSERT|UPDATE) .*;$`).FindAllString(string(text), -1) {
		if !strings.Contains(statement, "$2") {
			_, err := db.ExecContext(t.Context(), statement)
			require.NoError(t, err, statement)
			continue
		}
		for _, c := range []struct {
			token int64
			want  error
		}{{5, nil}, {5, nil}, {7, nil}, {6, sql.ErrNoRows}} {
			arguments := []any{"a", c.token, int64(150)}[:strings.Count(statement, "$3")+2]
			var got int64
			require.Equal(t, c.want, db.QueryRowContext(t.Context(), statement, arguments...).Scan(&got), statement)
		}
		_, err := db.ExecContext(t.Context(), `UPDATE accounts SET token = 0`)
		require.NoError(t, err)
		withToken++
	}
	require.Equal(t, 3, withToken)
}

// runProgram runs the program to its end.
func runProgram(t *testing.T, program, redis, postgres string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "REDIS_URL=redis://"+redis, "DATABASE_URL="+postgres)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // on which it ends its stopped process
	cmd.WaitDelay = 10 * time.Second
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // errors go to stderr
	return out.String(), errs.String()
}
