"""One process follows a run, for as long as it and its front end live."""

import threading

import pytest

from deploy.fleet.storage import followers
from deploy.fleet.storage.followers import Followers
from deploy.fleet.storage.postgres import LEASE, NOW, DatabaseError
from deploy.processes.ports import free_ports

RUN = "2026-01-02_03-04-05"
SILENT = f"UPDATE cohort_follower SET seen = {NOW} - {followers.LEASE + 1}"


@pytest.fixture
def url(postgres):
    return postgres.database()


def front_end(postgres, url, home, silent=0.0):
    postgres.execute("DELETE FROM cohort_front_end", url)
    postgres.execute(
        f"INSERT INTO cohort_front_end (name, home, seen) VALUES ('x', '{home}', {NOW} - {silent})", url
    )


def test_a_run_has_one_follower_until_that_leaves_or_is_silent(postgres, url):
    one, two, elsewhere = Followers(url, "/runs"), Followers(url, "/runs"), Followers(url, "b:/runs")
    assert one.claim(RUN, "1", "a") == ""
    assert one.claim(RUN, "1", "a") == ""
    assert two.claim(RUN, "2", "b") == "a"
    assert elsewhere.claim(RUN, "3", "b") == ""  # another folder
    assert not two.lives(RUN, "2")
    assert two.left() == set()

    postgres.execute(SILENT, url)
    assert two.left() == {RUN}
    assert two.claim(RUN, "2", "b") == ""
    assert not one.lives(RUN, "1")
    one.end(RUN, "1")  # which is not its run any more
    two.leave(RUN, "2")
    assert one.left() == two.left() == {RUN}
    assert one.claim(RUN, "1", "a") == ""
    one.end(RUN, "1")
    assert one.left() == set()
    assert two.claim(RUN, "2", "b") == ""


def test_a_follower_does_not_count_as_alive_without_its_front_end(postgres, url):
    one = Followers(url, "/runs")
    one.claim(RUN, "1", "a")
    for home, silent in (("a", LEASE + 1), ("b", 0.0)):
        front_end(postgres, url, home, silent)
        postgres.execute(SILENT, url)
        assert one.lives(RUN, "1")  # it still is the follower
        assert one.left() == {RUN}
    front_end(postgres, url, "a")
    assert one.lives(RUN, "1")
    assert one.left() == set()


def test_of_several_processes_that_claim_a_run_at_once_one_gets_it(postgres, url):
    Followers(url, "/runs").claim(RUN, "0", "a")
    postgres.execute(SILENT, url)
    claimants = [Followers(url, "/runs") for _ in range(8)]
    assert all(each.left() == {RUN} for each in claimants)  # all are connected
    start, answers = threading.Barrier(8), []

    def claim(each, name):
        start.wait(20)
        answers.append(each.claim(RUN, name, f"home {name}"))

    threads = [
        threading.Thread(target=claim, args=(each, str(name))) for name, each in enumerate(claimants, 1)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert answers.count("") == 1
    ((home,),) = postgres.execute("SELECT home FROM cohort_follower", url)
    assert set(answers) == {"", home}


def test_a_database_that_is_away_is_named_and_connected_again(postgres, url):
    (port,) = free_ports(1)
    with pytest.raises(DatabaseError, match="cannot be used: connection"):
        Followers(f"postgresql://me@127.0.0.1:{port}/name", "/runs").left()
    one = Followers(url, "/runs")
    one.claim(RUN, "1", "a")
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND "
    postgres.execute(f"{end} pid != pg_backend_pid()", url)
    with pytest.raises(DatabaseError, match="cannot be used"):
        one.lives(RUN, "1")
    assert one.lives(RUN, "1")
