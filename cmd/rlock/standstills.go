package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/pubsub"
)

// standstills are the long waits that Clients report.
type standstills struct {
	waits  []deadlock.Seen
	asked  int               // number of Clients asked
	silent map[string]bool   // ids of Clients that did not answer
	know   map[string]bool   // ids of Clients that answered; true with Options.Deadlock
	labels map[string]string // labels of blocking Clients, by id

	missing []error // what is not in it
}

// earPrefix is the prefix of the ears' channels.
var earPrefix = strings.TrimSuffix(pubsub.EarChannel(""), "}")

// earOf returns the id of the Client, or asker, with that channel.
func earOf(channel string) string {
	return strings.TrimSuffix(strings.TrimPrefix(channel, earPrefix), "}")
}

// ears returns the channels of the Clients' ears; the value is true for a sharded channel. Others that ask now, or have just asked, listen
// on such channels, too, and answer nothing.
func (v *viewer) ears(ctx context.Context) (ears map[string]bool, missing []error, err error) {
	all := nodes(v.rdb)
	plain, sharded := make([][]string, len(all)), make([][]string, len(all))
	down := each(ctx, all, func(ctx context.Context, i int) (err error) {
		n := all[i]
		if plain[i], err = n.Do(ctx, n.B().PubsubChannels().Pattern(pubsub.EarChannel("*")).Build()).AsStrSlice(); err != nil {
			return fmt.Errorf("PUBSUB: %w", err)
		}
		sharded[i], _ = n.Do(ctx, n.B().PubsubShardchannels().Pattern(pubsub.EarChannel("*")).Build()).AsStrSlice() // Redis before 7 has no sharded channels
		return nil
	})
	if len(down) == len(all) {
		return nil, nil, down[0]
	}
	ears = make(map[string]bool)
	for i := range all {
		for j, name := range slices.Concat(plain[i], sharded[i]) {
			if !isAsker(earOf(name)) {
				ears[name] = j >= len(plain[i])
			}
		}
	}
	return ears, v.missing(ctx, down), nil
}

// standstills asks all Clients with an ear, and collects their answers.
func (v *viewer) standstills(ctx context.Context, within time.Duration) (w standstills, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ears, missing, err := v.ears(ctx)
	w.missing = missing
	if err != nil || len(ears) == 0 {
		return w, err
	}
	id := newAsker()
	answers, lost, err := v.hear(ctx, pubsub.EarChannel(id), ears)
	if err != nil {
		return w, err
	}
	question := pubsub.Spoken{Kind: deadlock.SeenKind, Payload: questionOf(id)}.String()
	w.asked, w.silent, w.know = len(ears), make(map[string]bool), make(map[string]bool)
	for channel, sharded := range ears {
		w.silent[earOf(channel)] = true
		ch := pubsub.Channel{Name: channel, Sharded: sharded}
		if err := v.rdb.Do(ctx, ch.Publish(v.rdb.B(), question)).Error(); err != nil {
			return w, fmt.Errorf("PUBLISH: %w", err)
		}
	}
	defer func() {
		slices.SortFunc(w.waits, func(a, b deadlock.Seen) int { return a.Began.Compare(b.Began) })
	}()
	over := time.After(within)
	announced := 0 // further answers of Clients
	for len(w.silent) > 0 || announced > 0 {
		select {
		case text := <-answers:
			said, _ := pubsub.ReadSpoken(text)
			a, ok := readAnswer(said.Payload)
			if said.Kind != deadlock.SeenKind || !ok {
				continue
			}
			if w.silent[a.Client] {
				delete(w.silent, a.Client)
				announced += a.Of
			}
			w.know[a.Client] = !a.Off
			if a.Wait != nil {
				w.waits = append(w.waits, *a.Wait)
				announced--
			}
		case err := <-lost: // the answers, too: it is not the Clients that are silent
			return w, err
		case <-over:
			return w, nil
		case <-ctx.Done():
			return w, ctx.Err()
		}
	}
	return w, nil
}

// isKnown reports whether an owner's Client reports its waits.
func (w *standstills) isKnown(owner string) bool { return w.know[clientID(owner)] }

// leadsTo describes an owner's wait, if any.
func (w *standstills) leadsTo(owner string) string {
	for i := range w.waits {
		if s := &w.waits[i]; slices.ContainsFunc(s.Holds, func(h deadlock.SeenHold) bool { return h.Owner == owner }) {
			return fmt.Sprintf("waits for %q", s.Lock)
		}
	}
	if w.isKnown(owner) {
		return "waits for nothing"
	}
	return "says nothing"
}

// held returns the hold of the j-th wait for which the previous wait of the cycle waits.
func held(cycle []*deadlock.Seen, j int) []deadlock.SeenHold {
	s, before := cycle[j], cycle[(j+len(cycle)-1)%len(cycle)]
	at := slices.IndexFunc(s.Holds, func(h deadlock.SeenHold) bool { return slices.Contains(before.Blockers, h.Owner) })
	return s.Holds[max(at, 0) : max(at, 0)+1]
}

// hear subscribes to a channel, also sharded if one of the ears is, and returns once subscribed. lost gets the error of a subscription that
// has ended.
func (v *viewer) hear(ctx context.Context, channel string, ears map[string]bool) (answers chan string, lost chan error, err error) {
	answers = make(chan string, 1000)
	listens := []rueidis.Completed{v.rdb.B().Subscribe().Channel(channel).Build()}
	for _, sharded := range ears {
		if sharded {
			listens = append(listens, v.rdb.B().Ssubscribe().Channel(channel).Build())
			break
		}
	}
	ready := make(chan struct{}, 2*len(listens)) // confirmations, also that of an end
	lost = make(chan error, len(listens))
	for _, listen := range listens {
		hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { ready <- struct{}{} })
		go func() { // ends with ctx
			err := receive(hooked, v.rdb, listen, func(m rueidis.PubSubMessage) {
				select {
				case answers <- m.Message:
				default:
				}
			})
			if err != nil {
				lost <- fmt.Errorf("SUBSCRIBE: %w", err)
			}
		}()
	}
	for range listens {
		select {
		case <-ready:
		case err := <-lost:
			return nil, nil, err
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	return answers, lost, nil
}
