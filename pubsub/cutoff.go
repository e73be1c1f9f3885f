package pubsub

import (
	"errors"
	"strings"

	"github.com/redis/rueidis"
)

// A node that a partition, or an operator, has cut off from its cluster may still serve us. The connection works, no
// slot is taken from us, and no message ever comes: the unlocks happen at a node that took its place, or are
// published by nodes that it does not hear. No event shows this, but the node knows: without the majority of the
// masters its cluster_state is not "ok".
//
// So the link asks it when a connection begins, before anything is subscribed there, and when the end of the holder's
// remaining lease has woken a waiter. That is how a missed message shows, and at such a moment the waiter sends a
// command anyway.

var errCutOff = errors.New("the node is not in touch with its cluster")

// suspect makes the link ask its node whether it is still part of the cluster.
func (sh *share) suspect() {
	defer sh.lock().Unlock()
	if l := sh.sub.link; sh.sub.confirmed {
		l.suspected = true
		l.wake()
	}
}

// inTouch returns errCutOff if the node is out of touch with its cluster, and otherwise the error of a broken
// connection, if any. A server that does not answer this counts as in touch. Without a cluster nothing is asked.
func (l *link) inTouch(conn rueidis.DedicatedClient) error {
	if l.conns.rdb.Mode() != rueidis.ClientModeCluster {
		return nil
	}
	ctx, cancel := l.limited(subscribeTimeout)
	defer cancel(nil)
	result := conn.Do(ctx, conn.B().ClusterInfo().Build())
	if err := broken(result); err != nil {
		return err
	}
	if info, err := result.ToString(); err == nil && strings.Contains(info, "cluster_state:fail") {
		return errCutOff
	}
	return nil
}
