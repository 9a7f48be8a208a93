"""What the phrasebook speaks of: codes of countries, languages, currencies, units and time zones.

Only codes stand here, best known first; every word of every language comes from CLDR. A small phrasebook
takes the beginning of each list, so that each of its words is seen often enough to be learned.
"""

from typing import get_args

from qknorm.data.cldr import RelativeUnit


def _codes(text: str) -> list[str]:
    return text.split()


COUNTRIES = _codes("""
    ES FR IT DE PT GB US CN JP IN RU BR MX AR CA AU EG IL VN SK GR TR PL NL SE NO DK FI IE CH AT BE CZ HU RO
    BG UA MA TN DZ SA IQ IR SY JO LB KW YE LY SD ET KE NG GH ZA CM SN CU CL PE CO VE BO EC UY PY CR PA JM HT
    TH ID MY PH SG KR NP PK LK KH MN NZ
    IS HR SI RS AL EE LV LT CY MT LU MC AD AM AZ GE KZ UZ TM KG TJ AF BD LA BN TW QA OM BH AO MZ ZM ZW TZ UG
    RW MG NA BW ML NE TD CI BF GN SL LR TG BJ GA SO DJ ER MW LS GM MR GT HN SV NI DO BB TT BS BZ GY SR FJ PG
    WS TO VU BA MK ME MD BY MU SC MV BT TL LI SM
""")

LANGUAGES = _codes("""
    en es fr pt de it ru zh ja ar he vi gl sk ko hi tr pl nl sv da fi el cs hu ro bg uk hr ca eu ga cy fa ur
    bn th id sw la
    sr sl et lv lt is mt sq mk hy ka az kk uz mn ne ta te ml my km lo am so ha yo zu af eo
""")

CURRENCIES = _codes("""
    EUR USD GBP JPY CHF CNY INR RUB BRL MXN EGP CAD SEK PLN CZK MAD TRY VND SAR KRW ARS AUD DKK JOD UAH
    NOK HUF RON CLP COP PEN THB IDR NZD SGD KES NGN TND KWD ISK
""")

UNITS = _codes("""
    length-kilometer mass-kilogram volume-liter length-meter duration-hour duration-minute duration-day
    duration-year mass-gram length-centimeter temperature-celsius duration-month duration-week
    speed-kilometer-per-hour area-square-kilometer mass-tonne length-mile area-square-meter volume-cup
    mass-pound power-kilowatt digital-megabyte volume-cubic-meter duration-second length-foot area-hectare
    length-millimeter volume-gallon volume-milliliter mass-ounce length-inch digital-gigabyte
    energy-kilocalorie speed-meter-per-second power-horsepower energy-kilojoule temperature-fahrenheit
    mass-milligram length-yard electric-volt power-watt area-acre volume-cubic-centimeter power-megawatt
    energy-kilowatt-hour digital-kilobyte area-square-mile volume-barrel length-light-year
    speed-mile-per-hour area-square-foot frequency-hertz angle-degree length-nautical-mile
""")

ZONES = _codes("""
    Europe_Central Japan China America_Eastern Moscow India Israel Arabian Argentina Brasilia Europe_Western
    Korea Chile Colombia Peru Iran New_Zealand Pakistan Europe_Eastern America_Pacific Azores Cuba Alaska
    Mongolia Singapore Uruguay Paraguay Armenia Georgia Hong_Kong Mauritius Bangladesh Fiji Samoa Tonga
""")

ZONE_FORMS = ("generic", "standard", "daylight")

RELATIVE_UNITS = get_args(RelativeUnit)

# Every plural class of the five languages has members here: Slovak's 2 to 4, Arabic's 3 to 10 and 11 to 99.
WHOLE_NUMBERS: tuple[int, ...] = (*range(1, 31), *range(35, 100, 5), 100, 150, 200, 300, 400, 500, 1000, 2000)
HALF_NUMBERS: tuple[float, ...] = (1.5, 2.5, 3.5, 4.5, 5.5, 7.5, 9.5, 12.5)
RELATIVE_NUMBERS: tuple[int, ...] = (*range(1, 31), 36, 40, 45, 48, 50, 60, 72, 90, 100)
PERCENTS: tuple[int, ...] = tuple(number for number in WHOLE_NUMBERS if number <= 100)

YEARS = range(1990, 2030)
