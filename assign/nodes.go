package assign

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// formatVersion is the layout of the tree. There has been only one so far.
const formatVersion = 1

var formatText = fmt.Sprintf("assign %d\n", formatVersion)

// checkFormat refuses a root of another program or of a newer version.
func checkFormat(data []byte) error {
	var version int
	if _, err := fmt.Sscanf(string(data), "assign %d", &version); err != nil {
		return fmt.Errorf("%w: format node has %.40q, want %q", ErrFormat, data, formatText)
	}
	if version < 1 || version > formatVersion {
		return fmt.Errorf("%w: version %d, this program supports 1 to %d", ErrFormat, version, formatVersion)
	}
	return nil
}

// A memberNode is the data of a member's node. Only that member writes it.
type memberNode struct {
	MemberInfo
	Held      string           `json:"held"` // the member's items as ranges; see formatIDs
	Heartbeat time.Time        `json:"heartbeat"`
	Figures   map[string]int64 `json:"figures,omitempty"`
}

func encodeMember(info MemberInfo, held []int, p heartbeat) []byte {
	data, err := json.Marshal(memberNode{info, formatIDs(held), p.at.UTC(), p.figures})
	if err != nil {
		panic(err) // strings, numbers and times: cannot fail
	}
	return data
}

// decodeMember returns what a member has published about itself.
func decodeMember(data []byte) (registration, error) {
	var n memberNode
	if err := json.Unmarshal(data, &n); err != nil {
		return registration{}, fmt.Errorf("decode member node: %w", err)
	}
	held, err := parseIDs(n.Held)
	if err != nil {
		return registration{}, fmt.Errorf("decode member node: held: %w", err)
	}
	return registration{info: n.MemberInfo, current: held, heartbeat: n.Heartbeat, figures: limitFigures(n.Figures)}, nil
}

// memberName returns the prefix of a member's node. ZooKeeper appends ten
// digits of sequence number.
func memberName(id string) string { return "m-" + id + "-" }

// parseMemberName returns false for a node that was not created by a member.
func parseMemberName(node string) (id string, seq int64, ok bool) {
	rest, found := strings.CutPrefix(node, "m-")
	i := strings.LastIndexByte(rest, '-')
	if !found || i <= 0 {
		return "", 0, false
	}
	seq, err := strconv.ParseInt(rest[i+1:], 10, 64)
	return rest[:i], seq, err == nil && seq >= 0
}

// A plan has the requested owner of each item. Only the leader writes it.
type plan struct {
	Generation int64
	Writer     string // id of the leader that wrote it
	WrittenAt  time.Time
	proposal
	recent []Rebalancing // the last rebalancings, that of this plan last
}

// maxRecent bounds the rebalancings that a plan lists.
const maxRecent = 16

// A Rebalancing describes a plan that was written. Later plans list it.
type Rebalancing struct {
	// Generation is the plan's number.
	Generation int64 `json:"generation"`
	// Writer is the id of the leader that wrote it.
	Writer string `json:"writer"`
	// At is when the plan was written, by the clock of its writer.
	At time.Time `json:"at"`
	// Members is the number of members that have items.
	Members int `json:"members"`
	// Moved is the number of items that were moved away from connected members.
	Moved int `json:"moved"`
	// Without is the number of items without an owner.
	Without int `json:"without,omitempty"`
}

type planNode struct {
	Generation int64             `json:"generation"`
	Writer     string            `json:"writer"`
	WrittenAt  time.Time         `json:"written_at"`
	Items      map[string]string `json:"items"`             // member id -> ranges
	Without    map[Reason]string `json:"without,omitempty"` // reason -> ranges
	Recent     []Rebalancing     `json:"recent,omitempty"`
}

func encodePlan(p plan) []byte {
	n := planNode{p.Generation, p.Writer, p.WrittenAt, map[string]string{}, map[Reason]string{}, p.recent}
	for id, items := range byOwner(p.Owners) {
		n.Items[id] = formatIDs(items)
	}
	for reason, items := range byOwner(p.Without) {
		n.Without[reason] = formatIDs(items)
	}
	data, err := json.Marshal(n)
	if err != nil {
		panic(err) // strings, numbers and times: cannot fail
	}
	return data
}

func decodePlan(data []byte) (plan, error) {
	var n planNode
	if err := json.Unmarshal(data, &n); err != nil {
		return plan{}, fmt.Errorf("decode plan: %w", err)
	}
	if n.Generation < 1 {
		return plan{}, fmt.Errorf("decode plan: generation %d: must be at least 1", n.Generation)
	}
	p := plan{
		n.Generation, n.Writer, n.WrittenAt, proposal{map[int]string{}, map[int]Reason{}},
		n.Recent[max(0, len(n.Recent)-maxRecent):],
	}
	if err := expandRanges(n.Items, p.Owners); err != nil {
		return plan{}, fmt.Errorf("decode plan: items of %w", err)
	}
	if err := expandRanges(n.Without, p.Without); err != nil {
		return plan{}, fmt.Errorf("decode plan: items without owner: %w", err)
	}
	for id := range p.Without {
		if _, twice := p.Owners[id]; twice {
			return plan{}, fmt.Errorf("decode plan: item %d: listed with an owner and without one", id)
		}
	}
	return p, nil
}

// expandRanges inverts a map of keys to ranges into a map of items to keys.
func expandRanges[K ~string](ranges map[K]string, into map[int]K) error {
	for key, text := range ranges {
		ids, err := parseIDs(text)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		for _, id := range ids {
			if other, twice := into[id]; twice {
				return fmt.Errorf("%s: item %d: also assigned to %s", key, id, other)
			}
			into[id] = key
		}
	}
	return nil
}

// byOwner inverts a map of owners: member -> items, ascending.
func byOwner[K ~string](owners map[int]K) map[K][]int {
	m := map[K][]int{}
	for item, member := range owners {
		m[member] = append(m[member], item)
	}
	for _, ids := range m {
		slices.Sort(ids)
	}
	return m
}

// formatIDs formats unique ids in any order as ranges, such as "0-31,40".
func formatIDs(ids []int) string {
	ids = slices.Sorted(slices.Values(ids))
	var b strings.Builder
	for i := 0; i < len(ids); {
		j := i
		for j+1 < len(ids) && ids[j+1] == ids[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(ids[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(ids[j]))
		}
		i = j + 1
	}
	return b.String()
}

// parseIDs parses the output of formatIDs: ascending ranges, at most MaxItems
// ids.
func parseIDs(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var ids []int
	last := -1
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		lo, err1 := strconv.ParseUint(from, 10, 31)
		hi, err2 := strconv.ParseUint(to, 10, 31)
		if err1 != nil || err2 != nil || int(lo) <= last || hi < lo {
			return nil, fmt.Errorf("range %.40q: must be ascending numbers", part)
		}
		if hi-lo >= uint64(MaxItems-len(ids)) {
			return nil, fmt.Errorf("range %.40q: more than %d items", part, MaxItems)
		}
		for id := int(lo); id <= int(hi); id++ {
			ids = append(ids, id)
		}
		last = int(hi)
	}
	return ids, nil
}
