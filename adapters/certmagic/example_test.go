package rlockcertmagic_test

import (
	"context"
	"fmt"
	"os"

	"github.com/caddyserver/certmagic"

	rlockcertmagic "github.com/go-rlock/rlock/adapters/certmagic"
	"github.com/go-rlock/rlock/rlock"
)

// Every process has the same Storage. The data may be anywhere: here in a folder that all of them share.
func Example() {
	client, err := rlock.Open(os.Getenv("REDIS_URL"), rlock.Options{Prefix: "certmagic:", ConnectOnUse: true})
	if err != nil {
		panic(err)
	}
	defer client.Close()
	folder, err := os.MkdirTemp("", "certificates")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()

	locker := rlockcertmagic.New(client)
	certmagic.Default.Storage = locker.In(&certmagic.FileStorage{Path: folder})
	// now certmagic.HTTPS, certmagic.Listen or certmagic.ManageSync, which do this around their work:

	ctx, storage := context.Background(), certmagic.Default.Storage
	fmt.Println("locked:", storage.Lock(ctx, "issue_cert_example.org"))
	held, err := client.Mutex("issue_cert_example.org").IsLocked(ctx)
	fmt.Println("in Redis:", held, err)
	fmt.Println("unlocked:", storage.Unlock(ctx, "issue_cert_example.org"))
	// Output:
	// locked: <nil>
	// in Redis: true <nil>
	// unlocked: <nil>
}
