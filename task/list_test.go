package task

import "testing"

func TestListCursorsSurviveBeingText(t *testing.T) {
	for _, c := range []ListCursor{
		{}, {Database: 15, Stage: ListYounger, Pack: 1 << 60}, {Stage: ListRows, Task: 512}, {Database: 1, Pack: 7, Task: 512 + 32}, {Stage: ListRows, Task: 512, Due: Never},
	} {
		if got, err := ParseListCursor(c.String()); err != nil || *got != c {
			t.Errorf("%+v became %+v, %v", c, got, err)
		}
	}
}

func TestTextThatIsNoListCursorIsRefused(t *testing.T) {
	for _, text := range []string{"", "1", "1.2.3", "1.2.3.4", "1.2.3.4.5.6", "16.0.0.0.0", "0.4.0.0.0", "0.0.-1.0.0", "0.0.0.x.0",
		"0.2.0.511.0", "0.2.0.544.0", "0.0.9223372036854775808.0.0", "0.2.0.0.7", "0.2.0.512.-1"} {
		if c, err := ParseListCursor(text); err == nil {
			t.Errorf("ParseListCursor(%q) = %+v, want an error", text, c)
		}
	}
}
