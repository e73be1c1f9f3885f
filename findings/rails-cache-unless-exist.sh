#!/usr/bin/env bash
# Rails: in a FileStore or MemoryStore, a lock by write(unless_exist: true, expires_in: 1) whose holder died is not free until somebody reads it
#
# Run:      Active Support 6.1.7.10 and redis 4.8.0 with Ruby 3.1.2 (Debian 12), Redis 8.2.3: a lock of one second is taken by
#           write("job", ..., unless_exist: true, expires_in: 1), and not released. After two seconds somebody else asks for it, asks
#           exist?("job"), and asks again; and then once more after read("job"). In a MemoryStore, a FileStore and a RedisCacheStore.
# Guess:    it is given after two seconds. What has expired does not exist, as exist?() says.
# Seen:     with Redis it is so. The other two refuse it, while exist?() says false: "unless" looks whether there is a file or an entry, and
#           not at its end. A read() removes what has expired, and whoever asks after that gets the lock. Later
#           versions of the MemoryStore look at the end.
# Matters:  a job that was killed once never runs again, since a lock is asked for and not read; and whoever looks with read() to see why
#           repairs it by that. An expiry that is only applied by readers frees nothing for writers.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

start_server redis-8.2
debian ruby3.1=3.1.7+really3.1.2-0+deb12u1 libruby3.1=3.1.7+really3.1.2-0+deb12u1 ruby-activesupport=2:6.1.7.10+dfsg-1~deb12u4 \
	ruby-redis=4.8.0-1 ruby-concurrent=1.1.6+dfsg-5 ruby-i18n=1.10.0-2 ruby-tzinfo=2.0.5-1 ruby-zeitwerk=2.6.1-1
ruby=$folder/debian/usr/lib
export RUBYLIB=$ruby/ruby/vendor_ruby:$ruby/ruby/3.1.0:$ruby/x86_64-linux-gnu/ruby/3.1.0
export GEM_PATH=$folder/debian/usr/share/rubygems-integration/all
cat >main.rb <<'END'
require "active_support"
require "active_support/cache"
require "active_support/cache/redis_cache_store"

[
  ActiveSupport::Cache::MemoryStore.new,
  ActiveSupport::Cache::FileStore.new("cache"),
  ActiveSupport::Cache::RedisCacheStore.new(url: "redis://127.0.0.1:#{ARGV[0]}"),
].each do |cache|
  ask = -> { cache.write("job", "somebody", unless_exist: true, expires_in: 1) }
  puts cache.class.name.split("::").last
  puts "  the first: #{ask.()}, the next: #{ask.()}"
  sleep 2
  puts "  after two seconds: #{ask.()}"
  sleep 2
  puts "  after two more: exist?: #{cache.exist?("job")}, asked: #{ask.()}"
  sleep 2
  puts "  after two more: read: #{cache.read("job").inspect}, asked: #{ask.()}"
end
END
expect debian/usr/bin/ruby3.1 main.rb "$port" <<'END'
MemoryStore
  the first: true, the next: false
  after two seconds: false
  after two more: exist?: false, asked: false
  after two more: read: nil, asked: true
FileStore
  the first: true, the next: false
  after two seconds: false
  after two more: exist?: false, asked: false
  after two more: read: nil, asked: true
RedisCacheStore
  the first: true, the next: false
  after two seconds: true
  after two more: exist?: false, asked: true
  after two more: read: nil, asked: true
END
