#!/usr/bin/env bash
# redis-rs: BLPOP for ten seconds fails after half a second, and the next element is taken for nobody
#
# Run:      redis 1.8.1 with tokio 1.54.1 (crates.io), Redis 8.2.3: BLPOP of an empty list for ten seconds on a multiplexed connection.
#           After three, another client pushes an element, and looks at the list. The same with set_response_timeout(None).
# Guess:    BLPOP waits for ten seconds: its timeout is a parameter of the call, blpop(key, 10.0). Or it fails early, and no element is lost.
# Seen:     a response has 500 ms, by default, whatever the command says. The caller has an error then, and the server still has the command:
#           it gives the element to the connection, which drops it.
# Matters:  a permit, a token or a job that somebody waits for by BLPOP is gone with the first push, and the one who pushed sees nothing. A
#           client that gives up on a blocking command has to close the connection.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
mkdir src
cat >Cargo.toml <<'END'
[package]
name = "finding"
version = "1.0.0"
edition = "2024"

[dependencies]
redis = { version = "=1.8.1", default-features = false, features = ["tokio-comp"] }
tokio = { version = "=1.54.1", features = ["rt", "time", "macros"] }
END
cat >src/main.rs <<'END'
use redis::{AsyncCommands, AsyncConnectionConfig, Client, RedisResult};
use std::time::{Duration, Instant};

#[tokio::main(flavor = "current_thread")]
async fn main() -> RedisResult<()> {
    let client = Client::open(format!("redis://127.0.0.1:{}", std::env::args().nth(1).unwrap()))?;
    let mut other = client.get_multiplexed_async_connection().await?;
    for (name, config) in [
        ("as it is", AsyncConnectionConfig::new()),
        ("no response timeout", AsyncConnectionConfig::new().set_response_timeout(None)),
    ] {
        let mut waiting = client.get_multiplexed_async_connection_with_config(&config).await?;
        let blpop = tokio::spawn(async move {
            let begin = Instant::now();
            let answer: RedisResult<Option<(String, String)>> = waiting.blpop("permits", 10.0).await;
            let early = begin.elapsed() < Duration::from_secs(2);
            tokio::time::sleep(Duration::from_secs(6)).await;
            (answer, early)
        });
        tokio::time::sleep(Duration::from_secs(3)).await;
        let _: i64 = other.rpush("permits", "one").await?;
        let left: i64 = other.llen("permits").await?;
        let (answer, early) = blpop.await.unwrap();
        let answer = match answer {
            Ok(Some((_, value))) => value,
            Ok(None) => "nil".to_string(),
            Err(error) => error.to_string(),
        };
        println!("{name}: BLPOP: {answer}, within two seconds: {early}, left in the list: {left}");
    }
    Ok(())
}
END
cargo build -q --target-dir target
expect target/debug/finding "$port" <<'END'
as it is: BLPOP: timed out, within two seconds: true, left in the list: 0
no response timeout: BLPOP: one, within two seconds: false, left in the list: 0
END
