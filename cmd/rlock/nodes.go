package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

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

// nodeError is the error of one of several servers.
type nodeError struct {
	addr string
	err  error
}

func (e nodeError) Error() string { return e.addr + ": " + trimPrefix(e.err) }
func (e nodeError) Unwrap() error { return e.err }

// each asks all nodes at once, and returns the errors of those that fail.
func each(ctx context.Context, all []node, ask func(ctx context.Context, i int) error) (failed []nodeError) {
	if len(all) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nodeTime)
		defer cancel()
	}
	errs := make([]error, len(all))
	var asked sync.WaitGroup
	for i := range all {
		asked.Go(func() { errs[i] = ask(ctx, i) }) // ends with ctx
	}
	asked.Wait()
	for i, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && len(all) > 1:
			failed = append(failed, nodeError{all[i].addr, fmt.Errorf("no answer within %s", nodeTime)})
		default:
			failed = append(failed, nodeError{all[i].addr, err})
		}
	}
	return failed
}

// deployment is the part of a Redis that answers, and what is missing.
type deployment struct {
	masters  []node // or the only server, whatever its role
	down     []nodeError
	unserved int  // slots whose master does not answer
	unknown  bool // the user may not ask which slots those are
}

// slots is how many a cluster has.
const slots = 1 << 14

// deployed asks all nodes for their roles, and a cluster for its slots. It fails if no master answers.
func deployed(ctx context.Context, rdb rueidis.Client) (d deployment, err error) {
	all := nodes(rdb)
	if len(all) == 1 {
		d.masters = all
	} else {
		leads := make([]bool, len(all))
		d.down = each(ctx, all, func(ctx context.Context, i int) error {
			hello, err := all[i].Do(ctx, all[i].B().Hello().Build()).AsMap() // every user may send HELLO
			role := hello["role"]
			text, _ := role.ToString()
			leads[i] = text == "master"
			return err
		})
		for i, n := range all {
			if leads[i] {
				d.masters = append(d.masters, n)
			}
		}
	}
	if len(d.masters) == 0 {
		if len(d.down) > 0 {
			return d, fmt.Errorf("no master answers: %w", d.down[0])
		}
		return d, errors.New("no master answers")
	}
	if rdb.Mode() == rueidis.ClientModeCluster {
		d.findUnserved(ctx)
	}
	return d, nil
}

// findUnserved counts the slots that no answering master serves. Clients of this library list no failed masters (CLUSTER SHARDS), and with
// cluster-require-full-coverage no, the cluster's state is ok without them.
func (d *deployment) findUnserved(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, nodeTime)
	defer cancel()
	for _, n := range d.masters {
		if ranges, err := n.Do(ctx, n.B().ClusterSlots().Build()).ToArray(); err == nil {
			d.unserved = slots - served(ranges, n.addr, d.masters)
			return
		}
	}
	d.unknown = true
}

// served adds up the ranges of CLUSTER SLOTS, as the server at asked tells, whose master is among those.
func served(ranges []rueidis.RedisMessage, asked string, masters []node) (many int) {
	for i := range ranges {
		r, err := ranges[i].ToArray()
		if err != nil || len(r) < 3 {
			continue
		}
		first, _ := r[0].AsInt64()
		last, _ := r[1].AsInt64()
		master, err := r[2].ToArray()
		if err != nil || len(master) < 2 {
			continue
		}
		host, _ := master[0].ToString()
		port, _ := master[1].AsInt64()
		if host == "" || host == "?" { // it does not know its own name
			host, _, _ = net.SplitHostPort(asked)
		}
		addr := net.JoinHostPort(host, strconv.FormatInt(port, 10))
		if slices.ContainsFunc(masters, func(n node) bool { return n.addr == addr }) {
			many += int(last - first + 1)
		}
	}
	return many
}

// missing says in one line each what the answers of the masters leave out; nothing if all is known.
func (d *deployment) missing() (all []error) {
	if d.unserved == 0 && !d.unknown && len(d.masters) > 0 { // those that are down are replicas
		return nil
	}
	for _, err := range d.down {
		all = append(all, fmt.Errorf("missing: what is at %w", err))
	}
	if d.unserved > 0 {
		all = append(all, fmt.Errorf("missing: the locks in %d of the cluster's %d slots, whose masters do not answer (see: rlock doctor)", d.unserved, slots))
	}
	return all
}
