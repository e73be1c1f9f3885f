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
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/calls"
)

const (
	defaultAddr = "127.0.0.1:6379"

	// ownURL holds an address for rlock alone; the command of a run does not inherit it.
	ownURL = "RLOCK_REDIS_URL"

	// answerTime bounds a question to Redis.
	answerTime = 5 * time.Second
)

// options parses an address: host:port, several of them joined by commas, or a URL. Its errors do not repeat the address, which may contain
// a password.
func options(addr string) (rueidis.ClientOption, error) {
	o := rueidis.ClientOption{InitAddress: strings.Split(addr, ",")}
	switch {
	case strings.Contains(addr, "://"):
		var err error
		if o, err = rueidis.ParseURL(addr); err != nil {
			return o, errors.New("address: not a Redis URL: use redis://, rediss:// or unix://, as in redis://user:password@host:port/0, " +
				"with %40 %3A %2F for @ : / in the password")
		}
	case strings.Contains(addr, "?"):
		return o, errors.New("address: options after ? need a scheme: write redis://… or rediss://…")
	case strings.Contains(addr, "@"):
		return o, errors.New("address: a user or password needs a scheme: write redis://… or rediss://…")
	}
	o.DisableCache = true // nothing here reads through the client-side cache
	return o, nil
}

// target is the Redis to use, from the flags of all commands but the demo.
type target struct {
	url, passwordFile, caFile, prefix string

	where []string // the addresses, without a password; set by connect
	tls   bool     // set by connect
}

func (t *target) flags(fs *flag.FlagSet) {
	fs.StringVar(&t.url, "redis", "", "")
	fs.StringVar(&t.url, "addr", "", "")
	fs.StringVar(&t.passwordFile, "password-file", "", "")
	fs.StringVar(&t.caFile, "cacert", "", "")
	fs.StringVar(&t.prefix, "prefix", "", "")
}

// options combines the flags and the environment.
func (t *target) options(p *program) (rueidis.ClientOption, error) {
	o, err := options(cmp.Or(t.url, p.getenv(ownURL), p.getenv("REDIS_URL"), p.getenv("REDIS_ADDR"), defaultAddr))
	if err != nil {
		return o, err
	}
	t.where = o.InitAddress
	o.Password = cmp.Or(o.Password, p.getenv("REDIS_PASSWORD"), p.getenv("REDISCLI_AUTH"))
	if t.passwordFile != "" {
		text, err := os.ReadFile(t.passwordFile)
		if err != nil {
			return o, fmt.Errorf("-password-file: %w", err)
		}
		o.Password = strings.TrimRight(string(text), "\r\n")
	}
	if t.caFile != "" {
		pem, err := os.ReadFile(t.caFile)
		if err != nil {
			return o, fmt.Errorf("-cacert: %w", err)
		}
		if o.TLSConfig == nil {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		o.TLSConfig.RootCAs = x509.NewCertPool()
		if !o.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return o, fmt.Errorf("-cacert: %s has no PEM certificate", t.caFile)
		}
	}
	t.tls = o.TLSConfig != nil
	if o.Sentinel.MasterSet != "" { // sentinels usually have the servers' password and TLS
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	return o, nil
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
	c := make(chan connection, 1)
	go func() { // ends with the dial
		rdb, err := rueidis.NewClient(o)
		if err != nil {
			err = t.at(err)
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
	text, cure := trimPrefix(err), ""
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text = fmt.Sprintf("no answer within %s", answerTime)
		if t.tls {
			cure = " (with TLS)"
		}
	case calls.Cure(err) != "":
		cure = calls.Cure(err)
	case errors.As(err, &op) && op.Op == "dial":
		cure = " (set the address with -redis URL or REDIS_URL)"
	}
	if len(t.where) != 1 || !strings.Contains(text, t.where[0]) {
		text = strings.Join(t.where, ",") + ": " + text
	}
	return errors.New(text + cure)
}

// node is a server, with its name in our output.
type node struct {
	addr string
	rueidis.Client
}

// nodes returns all servers known to the client, ordered by address.
func nodes(rdb rueidis.Client) (all []node) {
	for addr, c := range rdb.Nodes() {
		all = append(all, node{addr, c})
	}
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.addr, b.addr) })
	return all
}

// masters returns the masters, or the only server, whatever its role. down has the errors of silent servers, which may be masters or
// replicas; err is not nil if none answers.
func masters(ctx context.Context, rdb rueidis.Client) (up []node, down []error, err error) {
	all := nodes(rdb)
	if len(all) == 1 {
		return all, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for _, n := range all {
		hello, err := n.Do(ctx, n.B().Hello().Build()).AsMap() // every user may send HELLO
		if err != nil {
			down = append(down, fmt.Errorf("%s: %w", n.addr, err))
			continue
		}
		role := hello["role"]
		if text, _ := role.ToString(); text == "master" {
			up = append(up, n)
		}
	}
	if len(up) == 0 {
		return nil, nil, fmt.Errorf("no master answers: %v", down)
	}
	return up, down, nil
}
