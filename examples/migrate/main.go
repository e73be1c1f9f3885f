// Migrate runs a Java program with Redisson and itself on the same orders, under the same locks, at the same time: see README.md.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

const (
	watchdog = 4 * time.Second // same on both sides; short, to keep the program short

	parcelsKey = "migrate:parcels" // a hash: shipped parcels per order
	journalKey = "migrate:journal" // a stream
)

func main() {
	jar := flag.String("jar", "migrate/java/target/migrate.jar", "the Java program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *jar)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "migrate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, jar string) error {
	if _, err := os.Stat(jar); err != nil {
		return fmt.Errorf("%w (build it: mvn -q -f migrate/java package)", err)
	}
	option, err := rueidis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return errors.New("REDIS_URL is not a Redis URL such as redis://127.0.0.1:6379") // err has the password
	}
	rdb, err := rueidis.NewClient(option)
	if err != nil {
		return fmt.Errorf("no Redis: %w (start one, or set REDIS_URL)", err)
	}
	defer rdb.Close()
	locks, err := rlock.New(rdb, rlock.Options{WatchdogTimeout: watchdog})
	if err != nil {
		return err
	}
	defer locks.Close()

	// The Java side says when it is ready, and begins when its stdin closes.
	java := exec.CommandContext(ctx, "java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-jar", jar,
		"redis://"+option.InitAddress[0], strconv.FormatInt(watchdog.Milliseconds(), 10))
	java.Stderr = os.Stderr
	begin, err := java.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := java.StdoutPipe()
	if err != nil {
		return err
	}
	if err := java.Start(); err != nil {
		return fmt.Errorf("the Java side: %w", err)
	}
	defer func() { _ = java.Process.Kill() }() // if still running
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		return errors.Join(fmt.Errorf("the Java side did not get ready: %w", err), java.Wait())
	}
	clearKeys := rdb.B().Del().Key(parcelsKey, journalKey).Build().Pin()
	if err := rdb.Do(ctx, clearKeys).Error(); err != nil {
		return err
	}
	if err := begin.Close(); err != nil {
		return err
	}
	goErr := work(ctx, shop{locks, rdb})
	_, _ = io.Copy(io.Discard, stdout)
	if err := errors.Join(goErr, java.Wait()); err != nil {
		return err
	}

	journal, err := rdb.Do(ctx, rdb.B().Xrange().Key(journalKey).Start("-").End("+").Build()).AsXRange()
	if err != nil {
		return err
	}
	if err := rdb.Do(ctx, clearKeys).Error(); err != nil {
		return err
	}
	return report(journal)
}

// work ships parcels of three orders at a time, like the Java side.
func work(ctx context.Context, s shop) error {
	var (
		wg   sync.WaitGroup
		errs [3]error
	)
	wg.Go(func() { errs[0] = s.shipAll(ctx, "order:1", 5, 20*time.Millisecond, 20*time.Millisecond) })
	wg.Go(func() { errs[1] = s.shipAll(ctx, "order:2", 5, 20*time.Millisecond, 20*time.Millisecond) })
	wg.Go(func() { errs[2] = s.shipAll(ctx, "order:big", 1, 0, 6*time.Second) }) // longer than the watchdog time
	wg.Wait()
	return errors.Join(errs[:]...)
}

// report prints who held which lock, and when.
func report(journal []rueidis.XRangeEntry) error {
	all, err := sections(journal)
	if err != nil {
		return err
	}
	fmt.Println("     ms      lock       held by")
	for _, s := range all {
		fmt.Printf("%4d to %4d  %-9s  %-4s  %-41s  parcel %s, %s levels\n",
			s.from-all[0].from, s.to-all[0].from, s.order, s.side, s.owner, s.parcel, s.levels)
	}
	fmt.Printf("%d sections, and no two of one lock together\n", len(all))
	return nil
}
