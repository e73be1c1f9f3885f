-- This text stands before the scripts that send a message to one process (see script.go). pubsub/message.go reads and specifies them.

-- grant_message says that an owner has the lock for so many ms, with that token; '-' stands for none. The 0 is the version.
local function grant_message(owner, lease, token)
  return owner .. ' ' .. lease .. ' 0 ' .. token
end

-- look_message says that the lock is to be looked at in so many ms, by that owner if there is one.
local function look_message(ms, owner)
  return string.format('? %.0f', ms) .. (owner and ' ' .. owner or '')
end
