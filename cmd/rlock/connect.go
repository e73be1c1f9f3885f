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
)

const (
	defaultAddr = "127.0.0.1:6379"

	// ownURL is an address for this program alone, which the command of a run does not get.
	ownURL = "RLOCK_REDIS_URL"

	// answerTime bounds a question to Redis.
	answerTime = 5 * time.Second
)

// options understands an address: host:port, several of them joined by commas, or a URL. Its errors do not repeat the address, which may
// have a password.
func options(addr string) (rueidis.ClientOption, error) {
	o := rueidis.ClientOption{InitAddress: strings.Split(addr, ",")}
	switch {
	case strings.Contains(addr, "://"):
		var err error
		if o, err = rueidis.ParseURL(addr); err != nil {
			return o, errors.New("address: no URL of Redis: the scheme is redis, rediss or unix, as in redis://user:password@host:port/0, " +
				"with %40 %3A %2F for @ : / in the password")
		}
	case strings.Contains(addr, "?"):
		return o, errors.New("address: it has options behind a ?, but no scheme: write redis://… or rediss://…")
	case strings.Contains(addr, "@"):
		return o, errors.New("address: it has a user or a password, but no scheme: write redis://… or rediss://…")
	}
	o.DisableCache = true // nothing here reads through the client-side cache
	return o, nil
}

// target says where Redis is. All commands but the demo have its flags.
type target struct {
	url, passwordFile, caFile, prefix string

	where []string // the addresses, without a password; set by connect
	tls   bool     // so is this
}

func (t *target) flags(fs *flag.FlagSet) {
	fs.StringVar(&t.url, "redis", "", "")
	fs.StringVar(&t.url, "addr", "", "")
	fs.StringVar(&t.passwordFile, "password-file", "", "")
	fs.StringVar(&t.caFile, "cacert", "", "")
	fs.StringVar(&t.prefix, "prefix", "", "")
}

// options are those of the flags and the environment.
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
			return o, fmt.Errorf("-cacert: %s has no certificate in PEM", t.caFile)
		}
	}
	t.tls = o.TLSConfig != nil
	if o.Sentinel.MasterSet != "" { // sentinels mostly have what their servers have
		o.Sentinel.TLSConfig = o.TLSConfig
	}
	return o, nil
}

// connection is a client, or why there is none.
type connection struct {
	rdb rueidis.Client
	err error
}

// dial connects, and says what came of it when it is known. It reports false, with the exit code, if it has nowhere to go. With retry, what
// only reads is sent again until it is answered; without, one learns what is wrong.
func (p *program) dial(t *target, retry bool) (connected <-chan connection, code int, ok bool) {
	o, err := t.options(p)
	if err != nil {
		return nil, p.misuse(err, ""), false
	}
	o.DisableRetry = o.DisableRetry || !retry
	c := make(chan connection, 1)
	go func() { // ends when a dial does
		rdb, err := rueidis.NewClient(o)
		if err != nil {
			err = t.at(err)
		}
		c <- connection{rdb, err}
	}()
	return c, 0, true
}

// connect reports false, with the exit code, if there is no connection, or ctx has ended first.
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

// at puts the addresses before an error of a connection, unless it names the only one, and says how to give others if nobody is there.
func (t *target) at(err error) error {
	text, cure := trimPrefix(err), ""
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		text = fmt.Sprintf("no answer within %s", answerTime)
		if t.tls {
			cure = " (it is asked by TLS)"
		}
	case errors.As(err, &op) && op.Op == "dial":
		cure = " (-redis URL or REDIS_URL says where Redis is)"
	}
	if len(t.where) != 1 || !strings.Contains(text, t.where[0]) {
		text = strings.Join(t.where, ",") + ": " + text
	}
	return errors.New(text + cure)
}

// node is a server, and what it is called in what we print.
type node struct {
	addr string
	rueidis.Client
}

// nodes are all servers that the client knows, in the order of their addresses.
func nodes(rdb rueidis.Client) (all []node) {
	for addr, c := range rdb.Nodes() {
		all = append(all, node{addr, c})
	}
	slices.SortFunc(all, func(a, b node) int { return strings.Compare(a.addr, b.addr) })
	return all
}

// masters are those of the nodes that are no replicas, or the only one, whatever it is. down are errors of those that do not answer, which may
// be either; err is not nil if none answers.
func masters(ctx context.Context, rdb rueidis.Client) (up []node, down []error, err error) {
	all := nodes(rdb)
	if len(all) == 1 {
		return all, nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	for _, n := range all {
		hello, err := n.Do(ctx, n.B().Hello().Build()).AsMap() // which every user may send
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
