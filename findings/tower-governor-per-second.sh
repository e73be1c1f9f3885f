#!/usr/bin/env bash
# tower_governor: per_second(5) is one request in five seconds; governor's Quota::per_second(5), which it is made of, is five in one second
#
# Run:      tower_governor 0.8.0 and governor 0.10.1 (crates.io): a limiter of each, with per_second of 5 and 1 and a burst of one, asked a
#           hundred times a second for four and a half seconds.
# Guess:    both let about 23 through with 5, and five with 1. A builder's per_second(n) is a rate, as in the library below it.
# Seen:     with 1 they agree. With 5, tower_governor lets one through: its number is the time for one request, and a larger number is a
#           lower limit.
# Matters:  who raises a limit from 2 to 10 a second has lowered it to six a minute, and the one with 1 that was tried first was right. The
#           unit belongs into a name: seconds_per_request.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mkdir src
cat >Cargo.toml <<'END'
[package]
name = "finding"
version = "1.0.0"
edition = "2021"

[dependencies]
tower_governor = { version = "=0.8.0", default-features = false }
governor = "=0.10.1"
END
cat >src/main.rs <<'END'
use governor::{Quota, RateLimiter};
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};
use tower_governor::governor::GovernorConfigBuilder;

fn passed(allow: impl Fn() -> bool) -> u32 {
    let begin = Instant::now();
    let mut count = 0;
    while begin.elapsed() < Duration::from_millis(4_500) {
        count += u32::from(allow());
        std::thread::sleep(Duration::from_millis(10));
    }
    count
}

fn main() {
    let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for number in [1, 5] {
        let config = GovernorConfigBuilder::default().per_second(number).burst_size(1).finish().unwrap();
        let rate = NonZeroU32::new(number as u32).unwrap();
        let limiter = RateLimiter::keyed(Quota::per_second(rate).allow_burst(NonZeroU32::MIN));
        for (name, count) in [
            ("tower_governor", passed(|| config.limiter().check_key(&address).is_ok())),
            ("governor", passed(|| limiter.check_key(&address).is_ok())),
        ] {
            let count = if count > 10 { "more than ten".to_string() } else { count.to_string() };
            println!("{name}, per_second({number}): {count}");
        }
    }
}
END
cargo build -q --target-dir target
expect target/debug/finding <<'END'
tower_governor, per_second(1): 5
governor, per_second(1): 5
tower_governor, per_second(5): 1
governor, per_second(5): more than ten
END
