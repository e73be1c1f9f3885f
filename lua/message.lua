-- A prelude (see script.go) for scripts that send a message to one process. pubsub/message.go specifies and reads the messages.

-- grant_message means that an owner has the lock for that many ms, with that token; '-' is no token. The 0 is the version.
local function grant_message(owner, lease, token)
  return owner .. ' ' .. lease .. ' 0 ' .. token
end

-- look_message asks for a look at the lock in that many ms, by that owner if one is given.
local function look_message(ms, owner)
  return string.format('? %.0f', ms) .. (owner and ' ' .. owner or '')
end
