package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
	"github.com/go-rlock/rlock/rlock"
)

const (
	defaultAddr = "127.0.0.1:6379"

	// ownURL holds an address for rlock alone; the command of a run does not inherit it.
	ownURL = "RLOCK_REDIS_URL"

	// refreshTime is how often the sentinels are asked for the master.
	refreshTime = 5 * time.Second
)

// How long a command waits for Redis. Variables for tests alone, whose Redis may share a busy machine.
var (
	// answerTime bounds a connect, and a question to Redis.
	answerTime = 5 * time.Second

	// nodeTime bounds a question to each of several servers, so that a silent one leaves time for what the others say.
	nodeTime = 2 * time.Second

	// connectTime is how long a run that does not wait for ever may at least take to connect.
	connectTime = 2 * time.Second

	// asideTime bounds what a run asks beside its lock: a label, or what an unlock has left.
	asideTime = 300 * time.Millisecond

	// unlockTime bounds an unlock.
	unlockTime = 3 * time.Second

	// closeTime bounds how long a silent Redis can delay the exit.
	closeTime = time.Second
)

// urlOptions are what may follow a URL's question mark: rueidis ignores all others.
var urlOptions = []string{
	"addr", "client_cache", "client_name", "db", "dial_timeout", "master_set", "max_retries", "protocol", "skip_verify", "write_timeout",
}

// options parses an address: host:port, several of them joined by commas, the path of a socket, or a URL. Its errors do not repeat the
// address, which may contain a password.
func options(addr string) (o rueidis.ClientOption, err error) {
	switch {
	case strings.HasPrefix(addr, "unix:"), strings.Contains(addr, "://"):
		o, err = urlOptionsOf(addr)
	case strings.HasPrefix(addr, "/"), strings.HasPrefix(addr, "./"), strings.HasPrefix(addr, "../"):
		o, err = socketAt(&url.URL{Path: addr})
	case strings.Contains(addr, "?"):
		err = errors.New("address: options after ? need a scheme: write redis://… or rediss://…")
	case strings.Contains(addr, "@"):
		err = errors.New("address: a user or password needs a scheme: write redis://… or rediss://…")
	default:
		o.InitAddress = strings.Split(addr, ",")
	}
	o.DisableCache = true // nothing here reads through the client-side cache
	return o, err
}

var errNoURL = errors.New("address: not a Redis URL: use redis://, rediss:// or unix://, as in redis://user:password@host:port/0, " +
	"with %40 %3A %2F for @ : / in the password")

func urlOptionsOf(addr string) (o rueidis.ClientOption, err error) {
	u, err := url.Parse(addr)
	if err != nil {
		return o, errNoURL
	}
	for name, values := range u.Query() {
		switch {
		case !slices.Contains(urlOptions, name):
			return o, fmt.Errorf("address: no such option after ?: %q; there are %s", name, strings.Join(urlOptions, ", "))
		case strings.HasSuffix(name, "_timeout") && !isDuration(values[0]):
			return o, fmt.Errorf("address: ?%s needs a unit, as in 5s", name)
		case name == "protocol" && !slices.Contains([]string{"2", "3"}, values[0]):
			return o, errors.New("address: ?protocol is 2 or 3")
		case name == "master_set" && values[0] == "":
			return o, errors.New("address: ?master_set is empty: give the name that the sentinels know")
		}
	}
	if u.Scheme == "unix" {
		return socketAt(u)
	}
	if strings.Contains(u.Host, ",") {
		return o, errors.New("address: a URL has one host: give the others as ?addr=host:port&addr=host:port")
	}
	if o, err = rueidis.ParseURL(addr); err != nil {
		return o, errNoURL
	}
	return o, nil
}

func isDuration(text string) bool {
	_, err := time.ParseDuration(text)
	return err == nil
}

// socketAt also accepts unix:path, and relative paths, of which a URL with two slashes would take the first part for a host.
func socketAt(u *url.URL) (rueidis.ClientOption, error) {
	path := u.Path
	switch {
	case u.Opaque != "":
		var err error
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return rueidis.ClientOption{}, errNoURL
		}
	case u.Host == "." || u.Host == "..":
		path = u.Host + path
	case u.Host != "":
		return rueidis.ClientOption{}, errors.New("address: write three slashes before the path of a socket: unix:///run/redis.sock")
	}
	if path == "" {
		return rueidis.ClientOption{}, errors.New("address: unix: needs the path of a socket, as in unix:///run/redis.sock")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return rueidis.ClientOption{}, fmt.Errorf("address: %w", err)
	}
	o, err := rueidis.ParseURL((&url.URL{Scheme: "unix", User: u.User, Path: path, RawQuery: u.RawQuery}).String())
	if err != nil {
		return o, errNoURL
	}
	return o, nil
}

// target is the Redis to use, from the flags of all commands but the demo.
type target struct {
	url, passwordFile, prefix          string
	caFile, certFile, keyFile          string
	sentinelUser, sentinelPasswordFile string

	where []string // the addresses, without a password; set by connect
	tls   bool     // set by connect
}

func (t *target) flags(fs *flag.FlagSet) {
	fs.StringVar(&t.url, "redis", "", "")
	fs.StringVar(&t.url, "addr", "", "")
	fs.StringVar(&t.passwordFile, "password-file", "", "")
	fs.StringVar(&t.caFile, "cacert", "", "")
	fs.StringVar(&t.certFile, "cert", "", "")
	fs.StringVar(&t.keyFile, "key", "", "")
	fs.StringVar(&t.sentinelUser, "sentinel-user", "", "")
	fs.StringVar(&t.sentinelPasswordFile, "sentinel-password-file", "", "")
	fs.StringVar(&t.prefix, "prefix", "", "")
}

// valid is the error that a Client would have about its options. Nothing is connected: without an address there is always an error, but one
// about the options comes first.
func valid(o rlock.Options) error {
	o.ConnectOnUse = true
	if _, err := rlock.OpenWith(rueidis.ClientOption{}, o); strings.HasPrefix(err.Error(), "rlock: Options.") {
		return err
	}
	return nil
}

// options combines the flags and the environment.
func (t *target) options(p *program) (rueidis.ClientOption, error) {
	if err := valid(rlock.Options{Prefix: t.prefix}); err != nil {
		return rueidis.ClientOption{}, err
	}
	o, err := options(cmp.Or(t.url, p.getenv(ownURL), p.getenv("REDIS_URL"), p.getenv("REDIS_ADDR"), defaultAddr))
	if err != nil {
		return o, err
	}
	o.Dialer.Timeout = cmp.Or(o.Dialer.Timeout, answerTime)
	t.where = o.InitAddress
	o.Password = cmp.Or(o.Password, p.getenv("REDIS_PASSWORD"), p.getenv("REDISCLI_AUTH"))
	if t.passwordFile != "" {
		if o.Password, err = secret("-password-file", t.passwordFile); err != nil {
			return o, err
		}
	}
	if err := t.secure(&o); err != nil {
		return o, err
	}
	err = t.askSentinels(&o)
	return o, err
}

// secret reads a password from the file that a flag names.
func secret(name, file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// secure sets TLS up: any of its flags turns it on.
func (t *target) secure(o *rueidis.ClientOption) error {
	if t.caFile != "" || t.certFile != "" || t.keyFile != "" {
		if o.DialCtxFn != nil {
			return errors.New("-cacert, -cert and -key: a socket has no TLS: leave them out")
		}
		if o.TLSConfig == nil {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
	}
	t.tls = o.TLSConfig != nil
	if t.caFile != "" {
		pem, err := os.ReadFile(t.caFile)
		if err != nil {
			return fmt.Errorf("-cacert: %w", err)
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("-cacert: %s has no PEM certificate", t.caFile)
		}
	}
	switch {
	case t.certFile == "" && t.keyFile == "":
		return nil
	case t.certFile == "":
		return errors.New("-key needs -cert, the file of the certificate that belongs to it")
	}
	pair, err := tls.LoadX509KeyPair(t.certFile, cmp.Or(t.keyFile, t.certFile))
	if err != nil {
		return fmt.Errorf("-cert, -key: %w", err)
	}
	o.TLSConfig.Certificates = []tls.Certificate{pair}
	return nil
}

// askSentinels sets up the connections to sentinels, which usually have the servers' TLS, but users of their own.
func (t *target) askSentinels(o *rueidis.ClientOption) (err error) {
	if o.Sentinel.MasterSet == "" {
		if t.sentinelUser != "" || t.sentinelPasswordFile != "" {
			return errors.New("-sentinel-user and -sentinel-password-file need sentinels: ?master_set=NAME in the URL")
		}
		return nil
	}
	o.Sentinel.TLSConfig, o.Sentinel.Dialer, o.Sentinel.Username = o.TLSConfig, o.Dialer, t.sentinelUser
	o.Sentinel.TopologyRefreshInterval = refreshTime // the announcement of a new master may get lost
	switch {
	case t.sentinelPasswordFile != "":
		o.Sentinel.Password, err = secret("-sentinel-password-file", t.sentinelPasswordFile)
	case t.sentinelUser != "":
		err = errors.New("-sentinel-user needs -sentinel-password-file")
	}
	return err
}

// connection is a client, or the reason why there is none.
type connection struct {
	rdb rueidis.Client
	err error
}

// dial connects in the background and delivers the result. It reports false, with the exit code, if the address is invalid. With retry,
// reads are repeated until answered; without, they fail with the reason.
func (p *program) dial(t *target, retry bool) (connected <-chan connection, code int, ok bool) {
	o, err := t.options(p)
	if err != nil {
		return nil, p.misuse(err, ""), false
	}
	o.DisableRetry = o.DisableRetry || !retry
	if p.connects != nil {
		p.connects(&o)
	}
	checkReplies(&o)
	c := make(chan connection, 1)
	go func() { // ends with the dial
		rdb, err := rueidis.NewClient(o)
		if err != nil {
			err = t.at(blame(o, err))
		}
		c <- connection{rdb, err}
	}()
	return c, 0, true
}

// connect reports false, with the exit code, if it cannot connect or ctx ends first.
func (p *program) connect(ctx context.Context, t *target) (rdb rueidis.Client, code int, ok bool) {
	connected, code, ok := p.dial(t, false)
	if !ok {
		return nil, code, false
	}
	select {
	case c := <-connected:
		if c.err != nil {
			return nil, p.fail(exitInternal, c.err), false
		}
		return c.rdb, 0, true
	case <-ctx.Done():
		return nil, endCode(ctx), false
	}
}

// at prefixes a connection error with the addresses, unless it names the only one, and says how to give others if none answers.
func (t *target) at(err error) error {
	text, cure, where := trimPrefix(err), "", t.where
	var one nodeError
	var refused refusal
	switch {
	case errors.As(err, &one): // not the nodes that were named, perhaps
		where = []string{one.addr}
	case errors.As(err, &refused):
		where = []string{refused.addr}
	}
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text = fmt.Sprintf("no answer within %s", answerTime)
		if t.tls {
			cure = " (with TLS)"
		}
	case calls.Cure(err) != "":
		if cure = calls.Cure(err); strings.Contains(text, cure) { // as in errors of Lock
			cure = ""
		}
	case strings.Contains(text, "NOAUTH "), strings.Contains(text, "WRONGPASS "):
		if cure = " (set the password with REDIS_PASSWORD or -password-file, the user in the URL)"; refused.role == roleSentinel {
			cure = " (sentinels have users and passwords of their own: -sentinel-user, -sentinel-password-file)"
		}
	case strings.HasSuffix(text, "tls: certificate required"):
		cure = " (give a client certificate with -cert and -key)"
	case refused.role == roleMaster && errors.As(err, &op) && op.Op == "dial":
		cure = " (the sentinels give this address)"
	case errors.As(err, &op) && op.Op == "dial":
		cure = " (set the address with -redis URL or REDIS_URL)"
	}
	if len(where) != 1 || !strings.Contains(text, where[0]) {
		text = strings.Join(where, ",") + ": " + text
	}
	return errors.New(text + cure)
}
