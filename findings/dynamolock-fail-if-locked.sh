#!/usr/bin/env bash
# dynamolock: with FailIfLocked nobody ever gets the lock of a holder that died, however long ago its lease ended
#
# Run:      cirello.io/dynamolock/v2 2.0.3 (Go), moto 5.2.5 as DynamoDB (PyPI): a client with a lease of two seconds takes a lock and is
#           gone without a release. Ten times, a second apart, another client asks with FailIfLocked. Then one asks without it.
# Guess:    refused for two seconds, and then in: the lease is in the record, and the client has seen that it did not change.
# Seen:     a lease is over once a client has seen the record unchanged for that long within one call. FailIfLocked is one look, and the
#           next call starts from nothing: refused each time, for ever. Without it the call waits for two seconds, and is in.
# Matters:  a job that runs if nobody else does, as cron starts it, is the use for FailIfLocked: after one crash it never runs again. Who
#           keeps no clock in the record needs a memory that outlives the call, or a patience beyond the lease.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

go_modules cirello.io/dynamolock/v2@v2.0.3 github.com/aws/aws-sdk-go-v2@v1.43.0 github.com/aws/aws-sdk-go-v2/service/dynamodb@v1.60.0
python_packages "moto[dynamodb]==5.2.5" flask==3.1.3 flask-cors==6.0.5
port=$(free_port)
run python3 -m moto.server -H 127.0.0.1 -p "$port"
cat >main.go <<'END'
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"cirello.io/dynamolock/v2"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	key := aws.Credentials{AccessKeyID: "any", SecretAccessKey: "any"}
	database := dynamodb.New(dynamodb.Options{
		Region:       "us-east-1",
		BaseEndpoint: aws.String("http://127.0.0.1:" + os.Args[1]),
		Credentials:  aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return key, nil }),
	})
	newClient := func() *dynamolock.Client {
		return must(dynamolock.New(database, "locks", dynamolock.WithLeaseDuration(2*time.Second), dynamolock.DisableHeartbeat()))
	}
	dead, other := newClient(), newClient()
	for {
		if _, err := dead.CreateTableWithContext(ctx, "locks"); err == nil {
			break
		} else if ctx.Err() != nil {
			panic(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	must(dead.AcquireLockWithContext(ctx, "report"))
	refused := 0
	for range 10 {
		time.Sleep(time.Second)
		_, err := other.AcquireLockWithContext(ctx, "report", dynamolock.FailIfLocked())
		if notGranted := (*dynamolock.LockNotGrantedError)(nil); errors.As(err, &notGranted) {
			refused++
		}
	}
	fmt.Println("FailIfLocked: refused:", refused)
	_, err := other.AcquireLockWithContext(ctx, "report")
	fmt.Println("without:", err)
}
END
expect go run . "$port" <<'END'
FailIfLocked: refused: 10
without: <nil>
END
