-- This text stands before the scripts that keep the queue of the waiting processes (see script.go).

-- queue_entry is what stands in the queue for an owner. The mark ' s' is for one whose lease is shorter than that of a grant, and ' f' for
-- another one that wants a token. An owner that is given less than it wants has a count of 0, and asks. So does one with a mark, a
-- letter, that a release does not know: later versions may add some.
local function queue_entry(owner, short, fenced)
  return owner .. (short and ' s' or fenced and ' f' or '')
end
