"""Writes rrule.jsonl: recurrence rules and their first instants, as python-dateutil has them.

    pip install python-dateutil==2.9.0.post0
    python3 rrule.py > rrule.jsonl

Left out, or put differently to dateutil, is what dateutil answers otherwise than RFC 5545 says:

- BYWEEKNO without a day: the day of the week is that of DTSTART (dateutil: all seven). dateutil is asked with that day.
- BYSETPOS of weeks: the first set is the whole week (dateutil: from DTSTART on). DTSTART is the first day of a week.
- BYDAY with and without numbers in one rule: either of them (dateutil: both).
- BYWEEKNO of -52 and -53: dateutil does not count them at the end of a year.
"""

import itertools
import json
import random
import signal
from datetime import datetime, timedelta

import dateutil
from dateutil.rrule import rrulestr

assert dateutil.__version__ == "2.9.0.post0", dateutil.__version__

DAYS = ["MO", "TU", "WE", "TH", "FR", "SA", "SU"]
FORM = "%Y%m%dT%H%M%S"

# The examples of RFC 5545, section 3.8.5.3, by start.
EXAMPLES = {
    "19970902T090000": """FREQ=DAILY;COUNT=10
FREQ=DAILY;UNTIL=19971224T000000Z
FREQ=DAILY;INTERVAL=2
FREQ=DAILY;INTERVAL=10;COUNT=5
FREQ=WEEKLY;COUNT=10
FREQ=WEEKLY;UNTIL=19971224T000000Z
FREQ=WEEKLY;INTERVAL=2;WKST=SU
FREQ=WEEKLY;UNTIL=19971007T000000Z;WKST=SU;BYDAY=TU,TH
FREQ=WEEKLY;COUNT=10;WKST=SU;BYDAY=TU,TH
FREQ=WEEKLY;INTERVAL=2;COUNT=8;WKST=SU;BYDAY=TU,TH
FREQ=MONTHLY;BYMONTHDAY=2,15;COUNT=10
FREQ=MONTHLY;INTERVAL=2;BYDAY=TU
FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13
FREQ=MONTHLY;COUNT=3;BYDAY=TU,WE,TH;BYSETPOS=3
FREQ=HOURLY;INTERVAL=3;UNTIL=19970902T170000Z
FREQ=MINUTELY;INTERVAL=15;COUNT=6
FREQ=MINUTELY;INTERVAL=90;COUNT=4
FREQ=DAILY;BYHOUR=9,10,11,12,13,14,15,16;BYMINUTE=0,20,40
FREQ=MINUTELY;INTERVAL=20;BYHOUR=9,10,11,12,13,14,15,16""",
    "19980101T090000": """FREQ=YEARLY;UNTIL=20000131T140000Z;BYMONTH=1;BYDAY=SU,MO,TU,WE,TH,FR,SA
FREQ=DAILY;UNTIL=20000131T140000Z;BYMONTH=1""",
    "19970901T090000": "FREQ=WEEKLY;INTERVAL=2;UNTIL=19971224T000000Z;WKST=SU;BYDAY=MO,WE,FR",
    "19970905T090000": """FREQ=MONTHLY;COUNT=10;BYDAY=1FR
FREQ=MONTHLY;UNTIL=19971224T000000Z;BYDAY=1FR""",
    "19970907T090000": "FREQ=MONTHLY;INTERVAL=2;COUNT=10;BYDAY=1SU,-1SU",
    "19970922T090000": "FREQ=MONTHLY;COUNT=6;BYDAY=-2MO",
    "19970928T090000": "FREQ=MONTHLY;BYMONTHDAY=-3",
    "19970930T090000": "FREQ=MONTHLY;COUNT=10;BYMONTHDAY=1,-1",
    "19970910T090000": "FREQ=MONTHLY;INTERVAL=18;COUNT=10;BYMONTHDAY=10,11,12,13,14,15",
    "19970610T090000": "FREQ=YEARLY;COUNT=10;BYMONTH=6,7",
    "19970310T090000": "FREQ=YEARLY;INTERVAL=2;COUNT=10;BYMONTH=1,2,3",
    "19970101T090000": "FREQ=YEARLY;INTERVAL=3;COUNT=10;BYYEARDAY=1,100,200",
    "19970519T090000": "FREQ=YEARLY;BYDAY=20MO",
    "19970512T090000": "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
    "19970313T090000": "FREQ=YEARLY;BYMONTH=3;BYDAY=TH",
    "19970605T090000": "FREQ=YEARLY;BYDAY=TH;BYMONTH=6,7,8",
    "19970913T090000": "FREQ=MONTHLY;BYDAY=SA;BYMONTHDAY=7,8,9,10,11,12,13",
    "19961105T090000": "FREQ=YEARLY;INTERVAL=4;BYMONTH=11;BYDAY=TU;BYMONTHDAY=2,3,4,5,6,7,8",
    "19970929T090000": "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-2",
    "19970805T090000": """FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=MO
FREQ=WEEKLY;INTERVAL=2;COUNT=4;BYDAY=TU,SU;WKST=SU""",
    "20070115T090000": "FREQ=MONTHLY;BYMONTHDAY=15,30;COUNT=5",
}

# Chosen by hand: leap days, ends of years, long intervals, dense rules over long times.
CHOSEN = {
    "20000229T120000": """FREQ=YEARLY
FREQ=YEARLY;INTERVAL=4
FREQ=YEARLY;BYYEARDAY=366
FREQ=YEARLY;BYYEARDAY=-366,-1
FREQ=MONTHLY;BYMONTHDAY=29;BYMONTH=2
FREQ=DAILY;BYMONTH=2;BYMONTHDAY=-1""",
    "20200131T235959": """FREQ=MONTHLY
FREQ=MONTHLY;BYMONTHDAY=-31
FREQ=MONTHLY;BYMONTHDAY=31;INTERVAL=5
FREQ=MONTHLY;BYDAY=5FR
FREQ=MONTHLY;BYDAY=-5SA
FREQ=YEARLY;BYDAY=53FR
FREQ=YEARLY;BYDAY=-53TH
FREQ=YEARLY;BYDAY=1MO,-1SU""",
    "20150101T000000": """FREQ=YEARLY;BYWEEKNO=53;BYDAY=FR
FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO,SU
FREQ=YEARLY;BYWEEKNO=-1;BYDAY=TH,SA;WKST=SU
FREQ=YEARLY;BYWEEKNO=1,52,53;BYDAY=MO;WKST=WE
FREQ=YEARLY;BYWEEKNO=20,30
FREQ=YEARLY;BYMONTH=12,1;BYWEEKNO=1,53;BYDAY=MO,TU,FR,SU
FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=9,17;BYSETPOS=1,-1,100
FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1
FREQ=DAILY;BYHOUR=1,2,3;BYMINUTE=5,10;BYSETPOS=2,-2
FREQ=HOURLY;BYMINUTE=1,2,3;BYSECOND=7,8;BYSETPOS=-1,1
FREQ=MINUTELY;BYSECOND=10,20,30;BYSETPOS=2;INTERVAL=7
FREQ=SECONDLY;INTERVAL=86399;BYHOUR=23
FREQ=SECONDLY;INTERVAL=86401;BYMINUTE=0
FREQ=SECONDLY;INTERVAL=7;BYSECOND=0,1,2,3,4,5,6;BYMINUTE=58,59;BYHOUR=23;BYMONTH=2;BYMONTHDAY=28;UNTIL=20150301T000000
FREQ=MINUTELY;INTERVAL=1441;BYHOUR=0
FREQ=HOURLY;INTERVAL=25;BYDAY=MO;BYHOUR=12
FREQ=HOURLY;INTERVAL=100000
FREQ=WEEKLY;INTERVAL=53;BYDAY=SA,SU
FREQ=DAILY;INTERVAL=400;BYDAY=MO""",
}


def moved(text, start):
    """The rule as dateutil must be asked; see the top."""
    if "BYWEEKNO" in text and "DAY=" not in text:
        return text + ";BYDAY=" + DAYS[start.weekday()]
    return text


def vector(start, text, first=12):
    rule = rrulestr("DTSTART:" + start.strftime(FORM) + "\nRRULE:" + moved(text, start).replace("00Z", "00"))
    return {
        "start": start.strftime(FORM),
        "rule": text,
        "next": [at.strftime(FORM) for at in itertools.islice(rule, first)],
    }


def some(rng, low, high, signed=False, most=4):
    numbers = rng.sample(range(low, high + 1), min(rng.randint(1, most), high - low + 1))
    return ",".join(str(-n if signed and rng.random() < 0.4 else n) for n in sorted(numbers))


def by_day(rng, freq, months):
    days = rng.sample(DAYS, rng.randint(1, 4))
    if freq == "MONTHLY" or freq == "YEARLY" and months:
        if rng.random() < 0.5:
            return ",".join(f"{rng.choice([-3, -2, -1, 1, 2, 3, 4])}{d}" for d in days)
    elif freq == "YEARLY" and rng.random() < 0.4:
        return ",".join(f"{rng.choice([-50, -20, -1, 1, 10, 52])}{d}" for d in days)
    return ",".join(days)


def generated(rng):
    freq = rng.choice(["YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY"])
    start = datetime(1975, 1, 1) + timedelta(seconds=rng.randrange(100 * 365 * 86400))
    fine = freq in ("HOURLY", "MINUTELY", "SECONDLY")
    parts, by = [f"FREQ={freq}"], []
    if rng.random() < 0.5:
        parts.append(f"INTERVAL={rng.choice([2, 3, 5, 7, 10, 36] if not fine else [2, 7, 15, 45, 50, 97, 1000, 90000])}")
    months = rng.random() < 0.35
    if months:
        by.append("BYMONTH=" + some(rng, 1, 12))
    weeks = freq == "YEARLY" and rng.random() < 0.25
    if weeks:
        by.append("BYWEEKNO=" + some(rng, 1, 51, signed=True))
    if freq == "YEARLY" and not weeks and rng.random() < 0.25 or fine and rng.random() < 0.15:
        by.append("BYYEARDAY=" + some(rng, 1, 366, signed=True, most=8))
    elif freq != "WEEKLY" and not weeks and rng.random() < 0.3:
        by.append("BYMONTHDAY=" + some(rng, 1, 31, signed=True))
    if rng.random() < 0.4:
        by.append("BYDAY=" + (by_day(rng, freq, months) if not weeks else ",".join(rng.sample(DAYS, 2))))
    for name, high in (("BYHOUR", 23), ("BYMINUTE", 59), ("BYSECOND", 59)):
        if rng.random() < 0.3:
            by.append(f"{name}={some(rng, 0, high)}")
    if rng.random() < 0.5:
        parts.append("WKST=" + rng.choice(DAYS))
    if by and rng.random() < 0.25:
        by.append("BYSETPOS=" + some(rng, 1, 5, signed=True, most=3))
        if freq == "WEEKLY":
            week = next((p[5:] for p in parts if p.startswith("WKST=")), "MO")
            start -= timedelta(days=(start.weekday() - DAYS.index(week)) % 7)
    if rng.random() < 0.2:
        parts.append(f"COUNT={rng.randint(1, 11)}")
    rng.shuffle(by)
    return start, ";".join(parts + by)


def give_up(*_):
    raise TimeoutError


def main():
    signal.signal(signal.SIGALRM, give_up)
    for rules in (EXAMPLES, CHOSEN):
        for start, texts in rules.items():
            for text in texts.split("\n"):
                print(json.dumps(vector(datetime.strptime(start, FORM), text)))
    rng, known = random.Random(5545), 0
    while known < 600:
        start, text = generated(rng)
        # dateutil tries period after period, so each rule is asked about a time that it can try.
        days = {"SECONDLY": 2, "MINUTELY": 60, "HOURLY": 1500, "DAILY": 8000}.get(text.split(";")[0][5:], 36500)
        end = min(start + timedelta(days=days), datetime(2199, 12, 31)).strftime(FORM)
        bounded = ";".join(p for p in text.split(";") if not p.startswith("COUNT=")) + ";UNTIL=" + end
        count = next((int(p[6:]) for p in text.split(";") if p.startswith("COUNT=")), 0)
        signal.alarm(3)
        try:
            v = vector(start, bounded)
        except ValueError:  # the interval never meets the times
            continue
        except TimeoutError:  # dateutil looks for an instant after UNTIL to find the end
            continue
        finally:
            signal.alarm(0)
        if v["next"] and len(v["next"]) >= count:
            print(json.dumps(vector(start, text) if count else v), flush=True)
            known += 1


main()
