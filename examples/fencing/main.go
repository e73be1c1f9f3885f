//go:build unix

// Fencing stops the holder of a lock for longer than its lease, and lets it write afterwards: see README.md.
package main

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	lease := flag.Duration("lease", time.Second, "how long B waits for A, which is stopped; short, to keep the program short")
	only := flag.String("account", "", "show only plain, or only fenced")
	flag.Parse()
	// SIGPIPE: as in "go run ./fencing | head", after which nobody would continue A.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGPIPE)
	err := run(ctx, *lease, *only)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fencing:", strings.Join(strings.Fields(err.Error()), " "))
		os.Exit(1)
	}
}

func run(ctx context.Context, lease time.Duration, only string) error {
	db, err := sql.Open("pgx", cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres@127.0.0.1:5432/postgres"))
	if err == nil {
		_, err = db.ExecContext(ctx, createTable)
	}
	if parseErr := new(pgconn.ParseConfigError); errors.As(err, &parseErr) { // pgx masks only the passwords it recognizes
		return errors.New("DATABASE_URL is no URL of PostgreSQL, such as postgres://user:password@127.0.0.1:5432/postgres")
	}
	if err != nil {
		return fmt.Errorf("no PostgreSQL: %w (start one, or set DATABASE_URL)", err)
	}
	defer db.Close()

	client, err := rlock.Open(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"), rlock.Options{WatchdogTimeout: lease})
	if err != nil {
		return err
	}
	defer client.Close()

	locks := map[string]*rlock.Mutex{
		"plain":  client.Mutex("account:plain"),
		"fenced": client.FencedMutex("account:fenced"),
	}
	if account := flag.Arg(0); account != "" { // this is A, started by scene
		if locks[account] == nil {
			return errors.New("it takes no arguments")
		}
		return slowDeposit(ctx, locks[account], db, account)
	}
	for _, shown := range []struct{ account, title string }{
		{"plain", "A Mutex has no token: all writes carry 0"},
		{"fenced", "A FencedMutex has one"},
	} {
		if only != "" && only != shown.account {
			continue
		}
		fmt.Println(shown.title)
		if err := scene(ctx, locks[shown.account], db, shown.account, lease); err != nil {
			return err
		}
	}
	return nil
}

// scene makes A, another process, and B, this process, deposit to the same account.
func scene(ctx context.Context, lock *rlock.Mutex, db *sql.DB, account string, lease time.Duration) error {
	if _, err := db.ExecContext(ctx, `INSERT INTO rlock_accounts (name, balance) VALUES ($1, 100)
		ON CONFLICT (name) DO UPDATE SET balance = 100, token = 0`, account); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	a := exec.CommandContext(ctx, program, "-lease", lease.String(), account)
	a.Stderr = os.Stderr
	a.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so the kernel does not leave it stopped if this process is killed
	goOn, err := a.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := a.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.Start(); err != nil {
		return err
	}
	defer func() { _ = a.Process.Kill() }() // if still running; SIGKILL also ends a stopped process

	lines := bufio.NewScanner(stdout)
	if lines.Scan() {
		fmt.Println(lines.Text()) // A reads …
	}
	if err := a.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if _, err := syscall.Wait4(a.Process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // the kernel stops it a moment later
		return err
	}
	fmt.Println("  A is stopped, for longer than its lease")
	if err := deposit(ctx, lock, db, account, 50); err != nil {
		return err
	}
	fmt.Println("  B has got the lock, and deposits 50")
	fmt.Println("  A goes on")
	if err := errors.Join(a.Process.Signal(syscall.SIGCONT), goOn.Close()); err != nil {
		return err
	}
	for lines.Scan() {
		fmt.Println(lines.Text())
	}
	if err := a.Wait(); err != nil {
		return fmt.Errorf("process A: %w", err)
	}
	var balance int64
	err = db.QueryRowContext(ctx, `SELECT balance FROM rlock_accounts WHERE name = $1`, account).Scan(&balance)
	fmt.Println("  the balance is", balance)
	return err
}

// slowDeposit is A's deposit, stopped between its read and its write.
func slowDeposit(ctx context.Context, lock *rlock.Mutex, db *sql.DB, account string) error {
	err := lock.Do(ctx, func(ctx context.Context) error {
		token, _ := lock.FencingToken(ctx)
		balance, err := update(ctx, db, readAccount, account, token)
		if err != nil {
			return err
		}
		fmt.Printf("  A has the lock with token %d, and reads %d\n", token, balance)
		if _, err := io.Copy(io.Discard, os.Stdin); err != nil { // until B is done
			return err
		}
		// A write already in progress when the process stops does not see the ctx's end. This write simulates it.
		balance, err = update(context.WithoutCancel(ctx), db, writeAccount, account, token, balance+30)
		if err == nil {
			fmt.Println("  A writes", balance)
		}
		return err
	})
	fmt.Println("  A is told:", err)
	if !errors.Is(err, errRefused) {
		return nil
	}
	fmt.Println("  A tries again")
	return deposit(ctx, lock, db, account, 30)
}
