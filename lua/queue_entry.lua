-- A prelude (see script.go) for scripts that keep the queue of waiting processes.

-- queue_entry returns an owner's entry in the queue. The mark ' s' means a lease shorter than that of a grant, ' f' any other owner
-- that wants a token. An owner that gets less than it wants has a count of 0, and asks. So does an owner with a mark, a letter, that
-- the release does not know: later versions may add marks.
local function queue_entry(owner, short, fenced)
  return owner .. (short and ' s' or fenced and ' f' or '')
end
