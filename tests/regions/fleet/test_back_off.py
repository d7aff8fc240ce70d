from regions.fleet.back_off import LONGEST_BACK_OFF_S, STEADY_S, BackOff


def test_each_failure_in_a_row_doubles_the_wait_up_to_a_minute():
    made, waits = BackOff(), []
    for number in range(20):
        made.failed(float(number))
        waits.append(made.not_before - number)
    assert waits[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(waits[6:]) == {LONGEST_BACK_OFF_S}


def test_five_quiet_minutes_forgive_and_a_second_less_does_not():
    made = BackOff()
    for now in (0.0, 1.0, 1.0 + STEADY_S - 1):
        made.failed(now)
    assert made.failures == 3
    made.failed(made.failed_at + STEADY_S)
    assert (made.failures, made.not_before - made.failed_at) == (1, 1.0)


def test_what_never_failed_waits_for_nothing():
    assert BackOff().not_before == 0.0
