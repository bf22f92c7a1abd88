package main

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/task"
)

func TestWrongUsageIsNamedWithItsFlagOrArgument(t *testing.T) {
	s := &tasks{}
	s.serve(t)
	const reschedule = "bulk create reschedule --kind a"
	for line, want := range map[string]string{
		"task add --type one-shot --kind a\xff":                    `--kind: "a\xff" is not valid UTF-8`,
		"task add --type one-shot --kind a --tag b --tag c\xff":    `--tag: "c\xff" is not valid UTF-8`,
		"task add --type one-shot --kind a --param b=\xff --tag c": `--param: "b=\xff" is not valid UTF-8`,
		"kind pause a\xff":                        `"a\xff" is not valid UTF-8`,
		"export --retry-for -1s":                  "--retry-for: -1s is negative",
		"import a.csv --retry-for -1s":            "--retry-for: -1s is negative",
		"task list --timeout 0s":                  "--timeout: 0s is not above 0",
		"task list --timeout=-1s":                 "--timeout: -1s is not above 0",
		"task get":                                "the argument TASK... is missing",
		"task add --kind a --type one-shot extra": `"extra" is one argument too many: perceptorctl task add takes none`,
		"task add --kind a --type one-shot --max-count 9999999999999999999": `--max-count: "9999999999999999999" is not between `,
		"task add --kind a --type blocking --interval 99999999999999h":      `--interval: "99999999999999h" is longer than 100000d, the longest duration`,
		"task add --kind a --type one-shot --max-attempts 0":                "--max-attempts: 0 is not between 1 and 1000",
		"task update 7 --max-attempts 0":                                    "--max-attempts: 0 is not between 1 and 1000",
		"task add --kind a --type one-shot --multiplier 0":                  "--multiplier: 0 is not between 1 and 10",
		"task add --kind a --type blocking --misfire-limit 0":               "--misfire-limit: 0 is not between 1 and 100000",
		"tenant create a --weight 0":                                        "--weight: 0 is not between 1 and 1000",
		"tenant update a --weight 0":                                        "--weight: 0 is not between 1 and 1000",
		reschedule + " --shift 30m --next +1h":                              "--shift and --next exclude each other",
		reschedule:                                                          "reschedule needs --shift or --next",
		"dead replay 1-1":                                                   `"1-1": 1 is not the id of a task, which is 512 or more`,
		"dead show 512-0":                                                   `"512-0": 0 is not the number of a run, which is 1 or more`,
		"dead purge 512":                                                    `"512" is not the id of a run: that of its task, a hyphen and its number, such as 1027-1`,
		"dead purge 512-x":                                                  `"512-x" is not the id of a run`,
	} {
		if code, out, said := runCtl(t, strings.Fields(line)...); code != cli.Usage || !strings.HasPrefix(said, "perceptorctl: "+want) {
			t.Errorf("%s ended with %d: %s%s; want %s", line, code, out, said, want)
		}
	}
	if len(s.adds)+len(s.updates) > 0 {
		t.Errorf("wrong usage was sent: %v %v", s.adds, s.updates)
	}
}

func TestARefusedTokenIsSaidToBeWrong(t *testing.T) {
	st, err := status.New(codes.Unauthenticated, "the call needs the header").WithDetails(&errdetails.ErrorInfo{Reason: string(task.ReasonTokenRefused)})
	if err != nil {
		t.Fatal(err)
	}
	const malformed = "the token is malformed: a part of it is missing, or it is something else"
	whole := "pct_k4f2xw7q1m3n_" + strings.Repeat("a", 43)
	for token, want := range map[string]string{
		whole: "the token is unknown, expired or revoked", "eyJh.eyJp.c2ln": "the token is unknown, expired or revoked", "": "the call needs the header",
		whole[:len(whole)-1]: malformed, whole[4:]: malformed, "secret": malformed, "a..b": malformed,
	} {
		t.Setenv("PERCEPTOR_TOKEN", token)
		c := &ctl{certFile: "client.pem"}
		var known *cli.Error
		if err := c.explain(st.Err()); !errors.As(err, &known) || known.Error() != want || known.Code != cli.Failure || known.Hint == "" {
			t.Errorf("with the token %q: %+v, want %s", token, err, want)
		}
	}
}
