package rlockcertmagic_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	rlockcertmagic "github.com/go-rlock/rlock/adapters/certmagic"
	"github.com/go-rlock/rlock/internal/testing/redistest"
	"github.com/go-rlock/rlock/rlock"
)

const (
	watchdog = 4 * time.Second // longer than a busy machine stalls a process
	soon     = 20 * time.Second
	domain   = "example.org"
)

func TestMain(m *testing.M) {
	if os.Getenv("ROLE") != "" {
		process()
		return
	}
	redistest.MainWithExamples(m)
}

// authority is a certmagic.Issuer that signs what it is asked to.
type authority struct {
	issues func(ctx context.Context) error
}

func (a *authority) IssuerKey() string { return "test" }

func (a *authority) Issue(ctx context.Context, csr *x509.CertificateRequest) (*certmagic.IssuedCertificate, error) {
	if err := a.issues(ctx); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: domain}, DNSNames: csr.DNSNames,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, csr.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &certmagic.IssuedCertificate{Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// configOf returns the configuration of a process with certificates in a folder.
func configOf(folder string, locker *rlockcertmagic.Locker, issues func(context.Context) error) *certmagic.Config {
	var config *certmagic.Config
	cache := certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert: func(certmagic.Certificate) (*certmagic.Config, error) { return config, nil }, Logger: zap.NewNop(),
	})
	config = certmagic.New(cache, certmagic.Config{
		Storage: locker.In(&certmagic.FileStorage{Path: folder}), Issuers: []certmagic.Issuer{&authority{issues}}, Logger: zap.NewNop(),
		OCSP: certmagic.OCSPConfig{DisableStapling: true},
	})
	return config
}

// process gets a certificate, prints what it does behind its name, and ends when it is asked to.
func process() {
	name := os.Getenv("ROLE")
	say := func(what string) { _, _ = fmt.Fprintln(os.Stdout, name, what) }
	takes, err := time.ParseDuration(os.Getenv("TAKES"))
	check(err)
	lease, err := time.ParseDuration(os.Getenv("WATCHDOG"))
	check(err)
	client, err := rlock.Open("redis://"+os.Getenv("REDIS"), rlock.Options{WatchdogTimeout: lease, ConnectOnUse: true})
	check(err)
	config := configOf(os.Getenv("FOLDER"), rlockcertmagic.New(client), func(context.Context) error {
		say("asks for it")
		<-time.After(takes)
		return nil
	})
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, os.Interrupt)
	say("began")
	go func() { // ends with the process
		check(config.ObtainCertAsync(context.Background(), domain))
		say("has it")
	}()
	<-asked
	certmagic.CleanUpOwnLocks(context.Background(), zap.NewNop()) // as Caddy does
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// fleet is three processes that want the same certificate.
type fleet struct {
	*redistest.Self
	t         *testing.T
	redis     *redistest.Server
	processes map[string]*redistest.SelfProcess
}

func newFleet(t *testing.T, takes, watchdog time.Duration, redis *redistest.Server) *fleet {
	t.Helper()
	f := &fleet{redistest.NewSelf(t), t, redis, make(map[string]*redistest.SelfProcess)}
	folder := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		f.processes[name] = f.Start("ROLE="+name, "REDIS="+redis.Addr(), "FOLDER="+folder, "TAKES="+takes.String(), "WATCHDOG="+watchdog.String())
	}
	return f
}

// asks skips to the next process that asks the authority.
func (f *fleet) asks() (name string) {
	f.t.Helper()
	name, _, _ = strings.Cut(f.Find(" asks for it"), " ")
	return name
}

// get reads on until n processes have the certificate, and requires that nobody asks for it.
func (f *fleet) get(n int) {
	f.t.Helper()
	for n > 0 {
		line := f.Line()
		require.NotContains(f.t, line, "asks")
		if strings.HasSuffix(line, " has it") {
			n--
		}
	}
}

// One process asks the authority, for longer than any lease, and all have the certificate.
func TestOneGetsIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3*watchdog, watchdog, redistest.Start(t))
	f.asks()
	f.get(3)
}

// After the death of that process another one asks, when the lease has ended.
func TestKill(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3*watchdog, watchdog, redistest.Start(t))
	first := f.asks()
	f.processes[first].Kill()
	require.NotEqual(t, first, f.asks())
	f.get(2)
}

// A process that is stopped loses the lock, and another one asks. When it continues it has the certificate, too.
func TestPause(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3*watchdog, watchdog, redistest.Start(t))
	first := f.asks()
	f.processes[first].Pause()
	require.NotEqual(t, first, f.asks())
	f.get(2)
	f.processes[first].Resume()
	f.get(1)
}

// A restart of Redis with its data changes nothing. Without it another process asks as well: certmagic cannot be told.
func TestRestart(t *testing.T) {
	t.Parallel()
	t.Run("with its data", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 4*watchdog, 10*watchdog, redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always"))
		f.asks()
		f.redis.Kill()
		f.redis.Restart()
		f.get(3)
	})
	t.Run("without", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 4*watchdog, watchdog, redistest.Start(t))
		first := f.asks()
		f.redis.Kill()
		f.redis.Restart()
		require.NotEqual(t, first, f.asks())
		f.get(3)
	})
}

// A lock that is forced open while its process asks the authority: another one asks as well, and all have the certificate.
func TestForcedOpen(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3*watchdog, watchdog, redistest.Start(t))
	first := f.asks()
	client, err := rlock.New(f.redis.Client(t), rlock.Options{})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	forced, err := client.Mutex("issue_cert_" + domain).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, forced)
	require.NotEqual(t, first, f.asks())
	f.get(3)
}

// Processes that start before their Redis wait for it: an error of Lock would be the end of the certificate.
func TestOutage(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	s.Stop()
	f := newFleet(t, 0, watchdog, s)
	for range 3 {
		f.Find("began")
	}
	<-time.After(5 * time.Second) // longer than a Lock tries without the option
	s.Restart()
	f.asks()
	f.get(3)
}

// A process that ends in order frees its locks.
func TestShutdown(t *testing.T) {
	t.Parallel()
	f := newFleet(t, soon, time.Minute, redistest.Start(t))
	first := f.asks()
	f.processes[first].Terminate()
	require.Zero(t, f.processes[first].Wait())
	require.NotEqual(t, first, f.asks()) // long before the lease would end
}

// newLockers returns those of two processes, and the first one's Client.
func newLockers(t *testing.T) (a, b *rlockcertmagic.Locker, client *rlock.Client) {
	t.Helper()
	t.Parallel()
	s := redistest.Start(t)
	var lockers []*rlockcertmagic.Locker
	for range 2 {
		c, err := rlock.New(s.Client(t), rlock.Options{WatchdogTimeout: watchdog})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		client = c
		lockers = append(lockers, rlockcertmagic.New(c))
	}
	return lockers[1], lockers[0], client
}

// lose ends the hold of a lock, and returns when its process knows.
func lose(t *testing.T, client *rlock.Client, name string) {
	t.Helper()
	before := client.Stats().Lost
	forced, err := client.Mutex(name).ForceUnlock(t.Context())
	require.NoError(t, err)
	require.True(t, forced)
	redistest.Eventually(t, soon, func() bool { return client.Stats().Lost > before }, "it knows")
}

// A lock that is lost is taken again before the next attempt, after whoever has it by then.
func TestLostLock(t *testing.T) {
	a, b, client := newLockers(t)
	ctx := t.Context()
	require.NoError(t, a.Lock(ctx, "\x00 any bytes"))
	require.NoError(t, a.RenewLockLease(ctx, "\x00 any bytes", time.Minute))
	lose(t, client, "\x00 any bytes")
	require.NoError(t, b.Lock(ctx, "\x00 any bytes"))
	renewed := make(chan error, 1)
	go func() { renewed <- a.RenewLockLease(ctx, "\x00 any bytes", time.Minute) }()
	redistest.Eventually(t, soon, func() bool { return client.Stats().Waiting > 0 }, "it waits")
	require.Empty(t, renewed)
	require.NoError(t, b.Unlock(ctx, "\x00 any bytes"))
	require.NoError(t, redistest.Within(t, soon, renewed, "it has the lock again"))
	ok, err := b.TryLock(ctx, "\x00 any bytes")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, a.Unlock(ctx, "\x00 any bytes"))
	ok, err = b.TryLock(ctx, "\x00 any bytes")
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, b.Unlock(ctx, "\x00 any bytes"))
	require.Zero(t, client.Stats().Holds)
}

// Two callers of a process want the same lock, and the first one loses it. The second has its own lock and does not wait for it, and the
// first, if it asks again, waits no longer than for the second.
func TestLostLockOfTwo(t *testing.T) {
	a, b, client := newLockers(t)
	ctx := t.Context()
	inBackground := func(call func() error) <-chan error {
		t.Helper()
		ended, waiting := make(chan error, 1), client.Stats().Waiting
		go func() { ended <- call() }() // ends with the test
		redistest.Eventually(t, soon, func() bool { return len(ended) > 0 || client.Stats().Waiting > waiting }, "it has ended, or waits")
		return ended
	}
	renew := func() error { return a.RenewLockLease(ctx, "x", time.Minute) }
	require.NoError(t, a.Lock(ctx, "x")) // the first
	lose(t, client, "x")
	require.NoError(t, a.Lock(ctx, "x")) // the second
	require.NoError(t, redistest.Within(t, soon, inBackground(renew), "the second has its own lock"))
	require.NoError(t, a.Unlock(ctx, "x"))
	require.NoError(t, a.Unlock(ctx, "x"))
	ok, err := b.TryLock(ctx, "x")
	require.NoError(t, err)
	require.True(t, ok, "both are through")
	require.NoError(t, b.Unlock(ctx, "x"))

	require.NoError(t, a.Lock(ctx, "x")) // the first
	lose(t, client, "x")
	require.NoError(t, b.Lock(ctx, "x")) // another process
	second := inBackground(func() error { return a.Lock(ctx, "x") })
	first := inBackground(renew)
	require.NoError(t, b.Unlock(ctx, "x"))
	require.NoError(t, redistest.Within(t, soon, second, "the second has the lock"))
	require.Empty(t, first)
	require.NoError(t, a.Unlock(ctx, "x"))
	require.NoError(t, redistest.Within(t, soon, first, "the first has it again"))
	require.NoError(t, a.Unlock(ctx, "x"))
	require.Zero(t, client.Stats().Holds)
}

// A renewal that fails leaves its caller with an Unlock to call, which frees no other lock.
func TestLostLockIsNotRenewed(t *testing.T) {
	a, b, client := newLockers(t)
	require.NoError(t, a.Lock(t.Context(), "x"))
	lose(t, client, "x")
	require.NoError(t, b.Lock(t.Context(), "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.RenewLockLease(ctx, "x", time.Minute), context.Canceled)
	require.NoError(t, b.Unlock(t.Context(), "x"))
	require.NoError(t, a.Lock(t.Context(), "x")) // another caller
	require.NoError(t, a.Unlock(t.Context(), "x"), "the first one's, which is lost")
	ok, err := b.TryLock(t.Context(), "x")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, a.Unlock(t.Context(), "x"))
}

// An Unlock frees no lock of another caller of the process: one that comes after a loss keeps its own.
func TestUnlock(t *testing.T) {
	a, b, client := newLockers(t)
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, a.Unlock(ctx, "x"), "nothing is locked")
	require.NoError(t, a.Lock(ctx, "x"))
	cancel()
	ok, err := b.TryLock(t.Context(), "x")
	require.NoError(t, err)
	require.False(t, ok, "the lock does not end with the ctx of its Lock")
	ok, err = b.TryLock(ctx, "x")
	require.ErrorIs(t, err, context.Canceled)
	require.False(t, ok)
	require.ErrorIs(t, b.Lock(ctx, "x"), context.Canceled)

	lose(t, client, "x")
	require.NoError(t, a.Lock(t.Context(), "x")) // another caller
	require.NoError(t, a.Unlock(ctx, "x"), "the first one's, which is lost")
	ok, err = b.TryLock(t.Context(), "x")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, a.Unlock(ctx, "x"))
	require.NoError(t, a.Unlock(ctx, "x"), "certmagic does that at its end")
	ok, err = b.TryLock(t.Context(), "x")
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, b.Unlock(ctx, "x"))
}

// A caller that was stopped at the end of its Lock, and lost the lock meanwhile, does not pass for the one that has it now.
func TestLostLockThatComesLate(t *testing.T) {
	a, b, client := newLockers(t)
	ctx := t.Context()
	late, err := rlock.Acquire(ctx, client.Mutex("x"))
	require.NoError(t, err)
	lose(t, client, "x")
	require.NoError(t, a.Lock(ctx, "x")) // the second
	a.Add("x", late)                     // the first
	renewed := make(chan error, 1)
	go func() { renewed <- a.RenewLockLease(ctx, "x", time.Minute) }() // ends with the test
	require.NoError(t, redistest.Within(t, soon, renewed, "it does not wait for the second"))
	require.NoError(t, a.Unlock(ctx, "x"), "the first")
	ok, err := b.TryLock(ctx, "x")
	require.NoError(t, err)
	require.False(t, ok, "the second has it")
	require.NoError(t, a.Unlock(ctx, "x"))
	ok, err = b.TryLock(ctx, "x")
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, b.Unlock(ctx, "x"))
}

// After the end of the Client there are no locks, and no attempt goes on.
func TestClosed(t *testing.T) {
	a, _, client := newLockers(t)
	require.NoError(t, a.Lock(t.Context(), "x"))
	client.Close()
	require.ErrorIs(t, a.RenewLockLease(t.Context(), "x", time.Minute), rlock.ErrClosed)
	require.NoError(t, a.Unlock(t.Context(), "x"))
	require.ErrorIs(t, a.Lock(t.Context(), "x"), rlock.ErrClosed)
	_, err := a.TryLock(t.Context(), "x")
	require.ErrorIs(t, err, rlock.ErrClosed)
}

// A failure of the authority frees the lock, and others go on.
func TestFailure(t *testing.T) {
	a, b, _ := newLockers(t)
	mine := errors.New("mine")
	folder := t.TempDir()
	fails := configOf(folder, a, func(context.Context) error { return mine })
	require.ErrorIs(t, fails.ObtainCertSync(t.Context(), domain), mine)
	require.NoError(t, configOf(folder, b, func(context.Context) error { return nil }).ObtainCertSync(t.Context(), domain))
	require.NoError(t, fails.ObtainCertSync(t.Context(), domain), "it is there")
}
