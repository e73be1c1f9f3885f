#!/usr/bin/env bash
# NATS: a message is refused as the duplicate of one that has been purged, deleted, has expired, or has another subject
#
# Run:      nats-server 2.15.3, embedded, and nats.go 1.55.0 (Go), a stream with a duplicate window of six seconds: a message with a
#           Nats-Msg-Id is published and removed from the stream, by a purge, by DeleteMsg, by its TTL, or by the next one of its subject
#           (MaxMsgsPerSubject 1). The message is published again, at once and after the window, and once for another subject.
# Guess:    it is stored. A duplicate is a message that is there, or that a consumer has had; the ids of a stream that was emptied are gone
#           with it, and a subject has its own.
# Seen:     the ids are kept beside the messages, one list for the whole stream. PubAck has no error and gives the number of a message
#           that does not exist; only its field Duplicate tells. After the window the message is stored.
# Matters:  "on" after "off" with the state as the id leaves the stream at "off"; a task that an operator purges and submits again never
#           runs. An id has to be of one attempt to say something, and "acknowledged" is not "in the stream".
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules github.com/nats-io/nats-server/v2@v2.15.3 github.com/nats-io/nats.go@v1.55.0
cat >main.go <<'END'
package main

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

const window = 6 * time.Second

func main() {
	ctx := context.Background()
	embedded := must(server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: "data"}))
	embedded.Start()
	if !embedded.ReadyForConnections(time.Minute) {
		panic("not ready")
	}
	stream := must(jetstream.New(must(nats.Connect(embedded.ClientURL()))))
	for _, way := range []struct {
		name   string
		again  string
		remove func(jetstream.Stream, uint64)
	}{
		{"purged", "lamp.eu", func(s jetstream.Stream, _ uint64) { must(0, s.Purge(ctx)) }},
		{"deleted", "lamp.eu", func(s jetstream.Stream, number uint64) { must(0, s.DeleteMsg(ctx, number)) }},
		{"expired", "lamp.eu", func(s jetstream.Stream, _ uint64) {
			for must(s.Info(ctx)).State.Msgs > 0 {
				time.Sleep(10 * time.Millisecond)
			}
		}},
		{"replaced", "lamp.eu", func(jetstream.Stream, uint64) { must(stream.Publish(ctx, "lamp.eu", []byte("off"), jetstream.WithMsgID("off"))) }},
		{"still there, another subject", "lamp.us", func(jetstream.Stream, uint64) {}},
	} {
		lamps := must(stream.CreateStream(ctx, jetstream.StreamConfig{
			Name: "lamps", Subjects: []string{"lamp.*"}, Duplicates: window, AllowMsgTTL: true, MaxMsgsPerSubject: 1,
		}))
		publish := func(when, subject string) uint64 {
			options := []jetstream.PublishOpt{jetstream.WithMsgID("on")}
			if way.name == "expired" {
				options = append(options, jetstream.WithMsgTTL(time.Second))
			}
			ack := must(stream.Publish(ctx, subject, []byte("on"), options...))
			message, err := lamps.GetLastMsgForSubject(ctx, subject)
			fmt.Printf("%s: %s: duplicate: %t, in the stream: %t\n", way.name, when, ack.Duplicate, err == nil && string(message.Data) == "on")
			return ack.Sequence
		}
		way.remove(lamps, publish("first", "lamp.eu"))
		publish("again", way.again)
		time.Sleep(2 * window)
		publish("after the window", way.again)
		must(0, stream.DeleteStream(ctx, "lamps"))
	}
}
END
expect go run . <<'END'
purged: first: duplicate: false, in the stream: true
purged: again: duplicate: true, in the stream: false
purged: after the window: duplicate: false, in the stream: true
deleted: first: duplicate: false, in the stream: true
deleted: again: duplicate: true, in the stream: false
deleted: after the window: duplicate: false, in the stream: true
expired: first: duplicate: false, in the stream: true
expired: again: duplicate: true, in the stream: false
expired: after the window: duplicate: false, in the stream: true
replaced: first: duplicate: false, in the stream: true
replaced: again: duplicate: true, in the stream: false
replaced: after the window: duplicate: false, in the stream: true
still there, another subject: first: duplicate: false, in the stream: true
still there, another subject: again: duplicate: true, in the stream: false
still there, another subject: after the window: duplicate: false, in the stream: true
END
